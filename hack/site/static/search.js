// Finds pages that have all words that are typed. It asks no one: pages.js, made with the site, has the text of all pages.
(function () {
  "use strict";
  const root = document.currentScript.src.replace(/search\.js$/, "");
  const input = document.getElementById("search"), list = document.getElementById("found");
  const count = (text, word) => text.split(word).length - 1;
  for (const p of pages) p.lower = (p.title + " " + p.text).toLowerCase();

  function find() {
    const words = input.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1);
    const hits = !words.length ? [] : pages
      .filter((p) => words.every((w) => p.lower.includes(w)))
      .map((p) => ({p, score: words.reduce((n, w) => n + Math.min(count(p.lower, w), 20) + 50 * count(p.title.toLowerCase(), w), 0)}))
      .sort((a, b) => b.score - a.score).slice(0, 12);
    list.replaceChildren(...hits.map(({p}) => {
      const item = document.createElement("li"), link = document.createElement("a"), around = document.createElement("small");
      const at = Math.max(0, p.text.toLowerCase().indexOf(words[0]));
      link.href = root + p.url; link.textContent = p.title;
      around.textContent = p.text.slice(Math.max(0, at - 30), at + 70).replace(/\s+/g, " ");
      item.append(link, " ", around);
      return item;
    }));
    if (words.length && !hits.length) list.textContent = "no page has it";
  }

  input.hidden = false; // without scripts there is no search
  input.value = new URLSearchParams(location.search).get("q") || "";
  input.addEventListener("input", find);
  find();
})();
