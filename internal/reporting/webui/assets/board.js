(function () {
  "use strict";
  const at = (id) => document.getElementById(id);
  const token = location.pathname.split("/")[1];
  const every = 2000, atLeast = 15000;
  let drawn = "", wanted = "", read = 0, sure = "", busy = false, over = false;

  function element(name, text, className) {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    if (className) e.className = className;
    return e;
  }

  // draw replaces what has changed, and leaves the rest, so that a reader's place and a button under the finger stay.
  function draw(now) {
    document.title = now.name + ": " + now.standing;
    at("name").textContent = now.name;
    at("phase").textContent = now.phase;
    at("standing").textContent = now.standing;
    at("standing").className = "chip " + now.tone;
    at("when").textContent = now.when;
    at("where").textContent = (now.cluster ? "Cluster " + now.cluster + ", as" : "As") + " of " + now.at.slice(11, 19) + " UTC";
    const bar = at("bar");
    bar.hidden = !now.counted;
    bar.value = now.filled;
    bar.className = now.tone;
    replace("facts", now.facts, (f) => [element("dt", f.label), element("dd", f.text.replace(/^\[[#-]+\] /, ""), f.tone)]);
    replace("losses", now.losses, (l) => [element("li", l)]);
    at("waiting").hidden = now.gates.length === 0 && now.offers.length === 0;
    replace("gates", now.gates, gate);
    replace("offers", now.offers, offer);
    at("done").hidden = now.phases.length === 0;
    replace("phases", now.phases, phase);
    wanted = now.changed;
    over = now.over;
  }

  function replace(id, items, make) {
    const box = at(id), text = JSON.stringify(items) + (id === "offers" ? sure : "");
    if (box.dataset.text === text) return;
    const inside = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    box.dataset.text = text;
    box.replaceChildren(...items.flatMap(make));
    if (inside !== undefined) for (const e of box.querySelectorAll("[data-key]")) if (e.dataset.key === inside) e.focus();
  }

  function gate(g) {
    const box = element("article", undefined, "gate");
    box.append(element("h3", g.title), element("p", "since " + g.since.slice(0, 16).replace("T", " ") + " UTC", "attention"), element("pre", g.guide));
    return [box];
  }

  function phase(p) {
    const line = element("li", p.title || p.name), tone = {stopped: "bad", "under way": "strong"}[p.state];
    line.append(element("small", p.took ? p.state + " in " + p.took : p.state, tone));
    return [line];
  }

  // offer asks again before anything is written: the second press confirms.
  function offer(o) {
    const box = element("div", undefined, "offer");
    const button = element("button", sure === o.id ? "Yes, confirm" : "Confirm: " + o.for);
    button.type = "button";
    button.dataset.key = o.id;
    button.disabled = busy;
    button.addEventListener("click", () => sure === o.id ? confirm(o) : ask(o.id));
    box.append(button, element("code", o.annotation + "=" + o.value));
    if (sure === o.id) {
      const no = element("button", "No", "plain");
      no.type = "button";
      no.dataset.key = "no";
      no.addEventListener("click", () => ask(""));
      box.append(no);
    }
    return [box];
  }

  let last = null;
  function ask(id) {
    sure = id;
    at("said").textContent = id ? "This is written to the Migration. Press again to confirm." : "";
    if (last) draw(last);
  }

  async function confirm(o) {
    busy = true;
    try {
      const answer = await fetch("confirm", {
        method: "POST", headers: {"Content-Type": "application/json", "X-Replumb-Token": token}, body: JSON.stringify({id: o.id}),
      });
      const body = await answer.json();
      at("said").textContent = answer.ok ? "Confirmed: " + body.annotation + "=" + body.value : body.problem;
    } catch (e) {
      at("said").textContent = "replumb ui does not answer; nothing may have been written";
    }
    busy = false;
    sure = "";
    look();
  }

  // reading reports whether someone is at work in the report, which another one would take away.
  function reading(frame) {
    const inner = frame && frame.contentDocument;
    if (!inner) return false;
    const focus = inner.activeElement, selected = inner.getSelection();
    return document.activeElement === frame && focus && /^(INPUT|SELECT|BUTTON)$/.test(focus.tagName) || selected && !selected.isCollapsed;
  }

  // reread puts a new report in the place of the old one when it is whole.
  function reread() {
    const old = at("frames").querySelector("iframe:not(.next)");
    if (wanted === drawn || Date.now() - read < atLeast && !over || reading(old) || at("frames").querySelector(".next")) return;
    const next = element("iframe", undefined, old ? "next" : "");
    const of = wanted;
    next.title = "Report";
    next.src = "report";
    next.addEventListener("load", () => {
      const fit = () => { if (next.contentDocument) next.style.height = Math.ceil(next.contentDocument.documentElement.getBoundingClientRect().height) + 2 + "px"; };
      fit();
      new ResizeObserver(fit).observe(next.contentDocument.documentElement);
      next.className = "";
      if (old) old.remove();
      drawn = of;
    });
    read = Date.now();
    at("frames").append(next);
  }

  let timer = 0;
  async function look() {
    clearTimeout(timer);
    const stale = at("stale");
    try {
      const answer = await fetch("state");
      const body = await answer.json();
      stale.hidden = answer.ok;
      if (answer.ok) {
        last = body;
        draw(body);
        reread();
      } else {
        stale.textContent = "What stands here is from before: " + body.problem;
      }
    } catch (e) {
      stale.hidden = false;
      stale.textContent = "What stands here is from before: replumb ui does not answer.";
    }
    timer = setTimeout(look, every);
  }
  look();
})();
