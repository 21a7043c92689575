"use strict";
// Tables sort by a click (or Enter) on a heading, figures can be saved as SVG or PNG, a link to a part that is folded
// unfolds it, one client is shown at a time, and what is wider than its place says that it scrolls. Nothing else needs
// a script.
const goal = () => document.getElementById(location.hash.slice(1));
function unfold() {
  const part = goal()?.querySelector(":scope > details");
  if (part) part.open = true;
  for (let up = goal(); up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
}
window.addEventListener("hashchange", unfold);
unfold();

for (const table of document.querySelectorAll("table.sort")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") === "descending";
      const value = (row) => {
        const text = row.cells[column].textContent;
        const number = parseFloat(text.replace(/,/g, ""));
        return Number.isNaN(number) ? text : number;
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      table.tBodies[0].append(...rows);
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

function whole(svg) {
  // A copy that carries its own looks: outside of the page there is no style sheet.
  const copy = svg.cloneNode(true);
  const looks = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font"];
  const parts = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((part, k) => {
    const style = getComputedStyle(parts[k]);
    for (const look of looks) part.style.setProperty(look, style.getPropertyValue(look));
    // A saved chart has its names at its lines' ends, and letters of one size, however narrow the page is.
    if (svg.classList.contains("chart")) part.style.fontSize = part.classList.contains("small") ? "10px" : "11.5px";
  });
  const box = svg.viewBox.baseVal;
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  return new XMLSerializer().serializeToString(copy);
}

function offer(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg");
  if (!svg) continue;
  const bar = document.createElement("div");
  bar.className = "save";
  for (const kind of ["SVG", "PNG"]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = kind;
    button.title = `Save this figure as ${kind}`;
    button.addEventListener("click", () => {
      const name = `${figure.id || "figure"}.${kind.toLowerCase()}`;
      const text = whole(svg);
      if (kind === "SVG") return offer(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`, name);
      const image = new Image();
      image.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = 2 * svg.viewBox.baseVal.width;
        canvas.height = 2 * svg.viewBox.baseVal.height;
        const brush = canvas.getContext("2d");
        brush.fillStyle = getComputedStyle(document.body).backgroundColor;
        brush.fillRect(0, 0, canvas.width, canvas.height);
        brush.drawImage(image, 0, 0, canvas.width, canvas.height);
        offer(canvas.toDataURL("image/png"), name);
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
      return undefined;
    });
    bar.append(button);
  }
  figure.prepend(bar);
}

// One client at a time: the folded parts of all clients become a list to choose from, and their text is drawn.
const make = (tag, looks = {}, ...inner) => {
  const made = Object.assign(document.createElement(tag), looks);
  made.append(...inner);
  return made;
};

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough * (1 - 1e-9));
}

function meanCurves(runs, x, y) {
  // The same axes as those of the other charts: from 0, unless that would hide the differences.
  const points = runs.flatMap((run) => run.points);
  const [xs, ys] = [0, 1].map((k) => points.map((point) => point[k]));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low >= 0 && low < 0.4 * high) low = 0;
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  [low, high] = [low === 0 ? 0 : low - room, high + room];
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const across = (v) => (60 + (v - first) / (last - first || 1) * 566).toFixed(1);
  const up = (v) => (244 - (v - low) / (high - low) * 198).toFixed(1);
  const step = roundStep((high - low) / 6);
  const begins = low > 0 || high < 0 ? `; the axis begins at ${Number(low.toPrecision(3))}, not at 0` : "";
  let inner = `<text x="4" y="18">${y}${begins}</text><text x="343" y="292" text-anchor="middle">${x}</text>`;
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) {
    const at = up(k * step);
    inner += `<line class="grid" x1="60" x2="626" y1="${at}" y2="${at}"/>`;
    inner += `<text x="54" y="${Number(at) + 4}" text-anchor="end">${Number((k * step).toPrecision(6))}</text>`;
  }
  for (const v of new Set(xs)) inner += `<text x="${across(v)}" y="264" text-anchor="middle">${v}</text>`;
  for (const [k, { colour, name, points: own }] of runs.entries()) {
    const path = own.map(([a, b]) => `${across(a)},${up(b)}`).join(" ");
    const wide = 2 + 2 * (runs.length - 1 - k); // so that one below another can be seen
    inner += `<polyline class="c${colour}" points="${path}" style="stroke-width:${wide}"><title>${name}</title></polyline>`;
    for (const [a, b] of own) {
      inner += `<circle class="f${colour}" r="3" cx="${across(a)}" cy="${up(b)}"><title>${name}: ${b}</title></circle>`;
    }
  }
  return `<svg class="chart" viewBox="0 0 640 300" role="img" xmlns="http://www.w3.org/2000/svg">${inner}</svg>`;
}

function drawClient(part, { worst, best, score }) {
  const runs = [...part.querySelectorAll(".run:has(pre)")].map((run) => {
    const [heads, ...rows] = run.querySelector("pre").textContent.split("\n").map((line) => line.trim().split(/ +/));
    const { colour } = run.dataset;
    const cell = (text, column) => {
      const share = Math.min(1, Math.max(0, (parseFloat(text.replace(/,/g, "")) - worst) / (best - worst || 1)));
      if (column < 2 || Number.isNaN(share)) return make("td", {}, text);
      const depth = Math.round(6 + 94 * share);
      const looks = `background: color-mix(in srgb, var(--c${colour}) ${depth}%, transparent)`;
      const made = make("td", { className: share > 0.55 ? "on" : "" }, text);
      made.style.cssText = looks;
      return made;
    };
    const names = heads.map((head) => head.replace(/^t1$/, "on 1").replace(/^t(?=\d)/, ""));
    const top = make("tr", {}, ...names.map((name, k) => make("th", {}, k ? name : "after")));
    const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
    run.querySelector("pre").replaceWith(make("div", { className: "wide" }, make("table", { className: "cells" },
      make("thead", {}, top), make("tbody", {}, ...body))));
    const points = rows.map((row) => [Number(row[0]), parseFloat(row[1].replace(/,/g, ""))]);
    return { colour, after: heads[0], name: run.querySelector("h4").textContent,
      points: points.filter(([, value]) => !Number.isNaN(value)) };
  });
  const drawn = runs.filter((run) => run.points.length);
  if (!drawn.length) return;
  const chart = make("div", { className: "card" });
  chart.innerHTML = meanCurves(drawn, `after ${drawn[0].after}`, `mean ${score}`);
  part.querySelector("summary").after(chart);
}

for (const box of document.querySelectorAll(".clients")) {
  const parts = [...box.children];
  const drawn = new Set();
  const list = make("select", {}, ...parts.map((part, k) => make("option", { value: k },
    part.firstChild.textContent)));
  list.setAttribute("aria-label", "Client");
  const show = (k) => {
    parts.forEach((part, place) => { part.hidden = place !== k; });
    parts[k].open = true;
    if (!drawn.has(k)) drawClient(parts[k], box.dataset);
    drawn.add(k);
    list.value = k;
  };
  const choose = (k) => {
    show((k + parts.length) % parts.length);
    history.replaceState(null, "", `#${parts[list.value].id}`);
  };
  const step = (text, title, by) => {
    const button = make("button", { type: "button", title }, text);
    button.addEventListener("click", () => choose(Number(list.value) + by));
    return button;
  };
  list.addEventListener("change", () => choose(Number(list.value)));
  box.before(make("p", { className: "pick" }, step("←", "The client before", -1), list,
    step("→", "The next client", 1)));
  box.classList.add("picked");
  const follow = () => {
    const k = parts.indexOf(goal());
    if (k >= 0) show(k);
    if (k >= 0) box.previousElementSibling.scrollIntoView();
  };
  show(0);
  window.addEventListener("hashchange", follow);
  follow();
}

for (const box of document.querySelectorAll(".wide, .scroll")) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.textContent = "scroll sideways for more →";
  box.after(hint);
  const look = () => {
    const wider = box.scrollWidth > box.clientWidth + 1;
    hint.hidden = !wider;
    if (wider) box.tabIndex = 0; // so that arrow keys scroll it
    box.classList.toggle("more", wider && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", look);
  new ResizeObserver(look).observe(box); // also when a folded part opens
}
