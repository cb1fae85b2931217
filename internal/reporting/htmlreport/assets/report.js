(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const print = window.matchMedia("print"), dark = window.matchMedia("(prefers-color-scheme: dark)");
  const levels = ["run", "phase", "tier", "batch"].filter((l) => data.spans.some((s) => s.level === l));
  const rows = levels.concat(data.losses.length ? ["losses"] : []);
  const rowNames = {run: "runs", phase: "phases", tier: "tiers", batch: "batches", losses: "losses"};
  const host = document.getElementById("charts");
  const readout = document.getElementById("readout");
  const rowHeight = 24, gutter = 74;
  let plots = [], probe = 0, range = 0;

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const two = (n) => String(n).padStart(2, "0");
  function clock(s, day) {
    const d = new Date(s * 1000);
    const time = two(d.getUTCHours()) + ":" + two(d.getUTCMinutes()) + ":" + two(d.getUTCSeconds());
    return day ? d.toISOString().slice(0, 10) + " " + time : time;
  }
  const ms = (v) => v == null ? "–" : v < 1 ? Math.round(v * 1000) + " µs" : v < 10 ? v.toFixed(1) + " ms" : v < 1000 ? Math.round(v) + " ms" : (v / 1000).toFixed(1) + " s";
  const pct = (v) => v == null ? "–" : v === 100 ? "100 %" : (Math.floor(v * 1e4) / 1e4) + " %";

  // Each step is as long as what it sums up. Where nothing was measured, between runs for instance, a line is broken.
  function columns(s) {
    const out = [[], [], [], []], values = [s.ok, s.p50, s.p99];
    const push = (x, of) => { out[0].push(x); values.forEach((c, k) => out[k + 1].push(of(c))); };
    s.x.forEach((x, i) => {
      push(x, (c) => c[i]);
      const next = s.x[i + 1], end = x + data.slot;
      if (next !== undefined && next - x <= 2.5 * data.slot) return;
      push(end, (c) => c[i]);
      if (next !== undefined) push(end + 0.001, () => null);
    });
    return out;
  }

  function lossMarks(u) {
    const all = probe === 0 ? data.losses : data.losses.filter((l) => l.probe === data.probes[probe].name);
    const {ctx} = u, {left, top, width, height} = u.bbox;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    ctx.fillStyle = color("bad"); ctx.globalAlpha = 0.28;
    for (const l of all) {
      const a = u.valToPos(l.start, "x", true), b = u.valToPos(l.end, "x", true);
      ctx.fillRect(Math.min(a, b) - 1, top, Math.max(3, b - a + 2), height);
    }
    ctx.restore();
  }

  function axes(label, format) {
    const font = "12px system-ui, 'DejaVu Sans', sans-serif";
    return [
      {stroke: color("soft"), grid: {stroke: color("grid"), width: 1}, ticks: {stroke: color("grid")}, font, space: 72, size: 34,
        values: (u, at) => { const days = at.length > 1 && at[at.length - 1] - at[0] > 86400; return at.map((s) => days ? clock(s, true).slice(5, 16) : clock(s)); }},
      {stroke: color("soft"), grid: {stroke: color("grid"), width: 1}, ticks: {show: false}, font, size: gutter, values: (u, at) => at.map(format)},
    ];
  }

  const cursor = () => ({sync: {key: "time", scales: ["x", null]}, drag: {x: true, y: false}, points: {show: false}, y: false});
  const window_ = () => data.ranges[range];

  // zoom has every chart show the same time.
  let zooming = false;
  function zoom(u, key) {
    if (key !== "x" || zooming) return;
    zooming = true;
    const {min, max} = u.scales.x;
    for (const p of plots) if (p !== u && (p.scales.x.min !== min || p.scales.x.max !== max)) p.setScale("x", {min, max});
    zooming = false;
  }

  function reset() {
    const {start, end} = window_();
    for (const p of plots) p.setScale("x", {min: start, max: end});
  }

  function add(title, options, columns) {
    const box = document.createElement("div"), head = document.createElement("p"), at = document.createElement("div");
    head.className = "chart-title"; head.append(...title); box.append(head, at); host.append(box);
    at.setAttribute("role", "img"); at.setAttribute("aria-label", head.textContent);
    const {start, end} = window_();
    const width = print.matches || printing ? 680 : Math.max(240, host.clientWidth);
    const u = new uPlot(Object.assign({
      width, legend: {show: false}, cursor: cursor(), padding: [8, 34, 0, 0], tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
    }, options, {
      scales: Object.assign({x: {time: true, min: start, max: end}}, options.scales),
      hooks: Object.assign({setScale: [zoom], setCursor: [tell]}, options.hooks),
    }), columns, at);
    u.over.addEventListener("dblclick", (e) => { e.stopPropagation(); reset(); });
    plots.push(u);
  }

  function mark(name, text) {
    const b = document.createElement("b");
    b.style.color = color(name); b.textContent = text;
    return b;
  }

  // gantt draws what was done when, a row for each level.
  function gantt(u) {
    const {ctx} = u, {left, top, width, height} = u.bbox, row = height / rows.length, scale = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    ctx.font = 11 * scale + "px system-ui, 'DejaVu Sans', sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "left";
    const box = (s, y, fill, name) => {
      const a = Math.max(left - 5, u.valToPos(s.start, "x", true)), b = Math.min(left + width + 5, u.valToPos(s.end, "x", true));
      const w = Math.max(2 * scale, b - a - 1);
      if (b < left || a > left + width) return;
      ctx.fillStyle = fill; ctx.fillRect(a, y + 2 * scale, w, row - 4 * scale);
      if (!name) return;
      const from = Math.max(a, left) + 4 * scale, room = a + w - from - 3 * scale;
      if (ctx.measureText(name).width <= room) { ctx.fillStyle = contrast(fill); ctx.fillText(name, from, y + row / 2); }
    };
    levels.forEach((l, i) => {
      for (const s of data.spans) if (s.level === l) box(s, top + i * row, color(s.outcome === "failed" ? "bad" : l), s.name);
    });
    if (data.losses.length) for (const s of data.losses) box(s, top + (rows.length - 1) * row, color("bad"));
    ctx.restore();
  }

  // contrast is black or white, whichever is easier to read on a color.
  function contrast(hex) {
    const [r, g, b] = [1, 3, 5].map((i) => { const c = parseInt(hex.slice(i, i + 2), 16) / 255; return c <= 0.03928 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
  }

  // tell says in words what is under the cursor.
  function tell(u) {
    if (u.cursor.left == null || u.cursor.left < 0) { readout.textContent = "\u00a0"; return; }
    const at = u.posToVal(u.cursor.left, "x"), parts = [clock(at, true)];
    for (const s of data.spans) if (s.level !== "run" && s.start <= at && at <= s.end) parts.push(s.name);
    const p = data.probes[probe];
    if (p) {
      let i = -1;
      for (let k = 0; k < p.x.length && p.x[k] <= at; k++) i = k;
      if (i >= 0 && at - p.x[i] <= 2 * data.slot) parts.push("availability " + pct(p.ok[i]), "p50 " + ms(p.p50[i]), "p99 " + ms(p.p99[i]));
    }
    for (const l of data.losses) if (l.start - data.slot / 2 <= at && at <= l.end + data.slot / 2) { parts.push(l.text); break; }
    readout.textContent = parts.join(" · ");
  }

  function line(name) { return {stroke: color(name), width: 1.6, points: {show: false}, paths: uPlot.paths.stepped({align: 1})}; }

  function draw() {
    if (!host || !data.ranges.length) return;
    for (const p of plots) p.destroy();
    plots = []; host.textContent = "";
    if (rows.length) {
      const {start, end} = window_(), none = [null, null];
      add(["What was done"], {
        height: rows.length * rowHeight + 42, scales: {y: {range: [0, rows.length]}}, hooks: {draw: [gantt]},
        axes: Object.assign(axes("", (v) => v), {1: {stroke: color("soft"), grid: {show: false}, ticks: {show: false}, size: gutter, font: "12px system-ui, 'DejaVu Sans', sans-serif",
          splits: () => rows.map((_, i) => rows.length - i - 0.5), values: () => rows.map((r) => rowNames[r])}}),
        series: [{}, {show: true, stroke: "transparent", points: {show: false}}],
      }, [[start, end], none]);
    }
    const p = data.probes[probe];
    if (!p) return;
    const c = columns(p), low = Math.min(...p.ok);
    const floor = low === 100 ? 99 : Math.max(0, low - (100 - low) * 0.15);
    add([mark("ok", "Availability"), " in percent of requests: " + p.name], {
      height: 150, scales: {y: {range: [floor, 100 + (100 - floor) * 0.08]}}, hooks: {draw: [lossMarks]},
      axes: axes("", (v) => v > 100 ? "" : +v.toFixed(4) + " %"), series: [{}, line("ok")],
    }, [c[0], c[1]]);
    const seen = p.p99.concat(p.p50).filter((v) => v > 0), log = Math.max(...seen) / Math.min(...seen) > 30;
    add([mark("p50", "p50"), " and ", mark("p99", "p99"), " latency" + (log ? ", logarithmic" : "") + ": " + p.name], {
      height: 200, hooks: {draw: [lossMarks]}, axes: axes("", (v) => v == null ? "" : ms(v)), series: [{}, line("p50"), line("p99")],
      scales: {y: log ? {distr: 3} : {range: (u, lo, hi) => [0, (hi || 1) * 1.1]}},
    }, [c[0], c[2], c[3]]);
  }

  function options(id, all, set) {
    const select = document.getElementById(id);
    if (!select) return;
    select.closest("label").hidden = all.length < 2;
    all.forEach((o, i) => select.add(new Option(o.name, String(i))));
    select.addEventListener("change", () => { set(Number(select.value)); draw(); });
  }
  let printing = false;
  if (host && data.ranges.length) {
    document.getElementById("controls").hidden = false;
    options("probe", data.probes, (i) => { probe = i; });
    options("range", data.ranges, (i) => { range = i; });
    draw();
    let width = host.clientWidth;
    new ResizeObserver(() => { if (!printing && host.clientWidth !== width) { width = host.clientWidth; draw(); } }).observe(host);
    dark.addEventListener("change", draw);
    window.addEventListener("beforeprint", () => { printing = true; draw(); });
    window.addEventListener("afterprint", () => { printing = false; draw(); });
    print.addEventListener("change", draw);
  }

  // Tables that can be sorted.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((th, column) => {
      if (th.hasAttribute("data-nosort")) return;
      const button = document.createElement("button");
      // Chromium paints no button in a head that is repeated on the next page, so paper gets the bare text.
      const paper = document.createElement("span");
      paper.className = "paper"; paper.textContent = button.textContent = th.textContent; button.type = "button";
      th.replaceChildren(paper, button);
      button.addEventListener("click", () => {
        const down = th.getAttribute("aria-sort") === "ascending";
        for (const h of heads) h.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0], compare = new Intl.Collator("en", {numeric: true}).compare;
        const keyed = [...body.rows].map((row) => { const cell = row.cells[column]; return {row, v: cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v)}; });
        keyed.sort((a, b) => (typeof a.v === "number" ? a.v - b.v : compare(a.v, b.v)) * (down ? -1 : 1));
        body.append(...keyed.map((k) => k.row));
      });
    });
  }

  // The filter of Services.
  const search = document.getElementById("search"), services = document.getElementById("services-table");
  if (search && services) {
    document.getElementById("filter").hidden = false;
    const all = [...services.tBodies[0].rows].map((row) => ({row, text: row.textContent.toLowerCase()}));
    search.addEventListener("input", () => {
      const want = search.value.trim().toLowerCase();
      let n = 0;
      for (const r of all) { const hit = r.text.includes(want); r.row.hidden = !hit; if (hit) n++; }
      document.getElementById("found").textContent = want ? n + " of " + all.length : "";
    });
  }
})();
