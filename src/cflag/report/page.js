"use strict";
// Tables sort by a click (or Enter) on a heading, figures can be saved as SVG or PNG, a link to a part that is folded
// unfolds it, and what is wider than its place says that it scrolls. Nothing else needs a script.
function unfold() {
  const part = location.hash && document.querySelector(`${location.hash} > details`);
  if (part) part.open = true;
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
