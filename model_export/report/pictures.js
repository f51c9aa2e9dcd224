// Lets a reader zoom and move the pictures of a report, see the names of rows, and find their nearest rows.
// A picture is a <figure class="rows"> as model_export/report/html.py writes it. Without this script it is a plain picture.
"use strict";

const MAX_SCALE = 500;
const SVG = "http://www.w3.org/2000/svg";

function element(tag, parent, attributes = {}, text = "") {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  parent.append(made);
  return made;
}

// Returns round numbers between low and high, about as many as `about`.
function ticks(low, high, about) {
  const span = high - low;
  if (!(span > 0 && span < Infinity)) return [low];
  const power = 10 ** Math.floor(Math.log10(span / about));
  const step = [1, 2, 5, 10].map((factor) => power * factor).find((one) => span / one <= about);
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  return Array.from({ length: count }, (_, i) => (Math.ceil(low / step - 1e-9) + i) * step);
}

function activate(figure) {
  const picture = figure.querySelector("svg");
  const plot = picture.querySelector("svg");
  const points = plot.querySelector(".map");
  const axes = picture.querySelector(".axes");
  const box = plot.viewBox.baseVal;
  const limits = { x: plot.dataset.x.split(" ").map(Number), y: plot.dataset.y.split(" ").map(Number) };
  const found = JSON.parse(figure.querySelector("script").textContent);
  const shapes = new Map();
  const titles = new Map();
  for (const shape of points.querySelectorAll("[data-row]")) {
    const title = shape.querySelector("title");
    shapes.set(shape.dataset.row, shape);
    titles.set(shape.dataset.row, title.textContent);
    // The browser would show the title beside the tip.
    title.remove();
  }

  // A point of the plot at (x, y) is drawn at scale * (x, y) + (left, top).
  let scale = 1, left = 0, top = 0;

  function axisMark(kind, attributes, text) {
    const mark = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) mark.setAttribute(name, value);
    if (text !== undefined) mark.textContent = text;
    axes.prepend(mark);
  }

  function drawAxes() {
    for (const mark of axes.querySelectorAll(".grid, .tick")) mark.remove();
    const right = box.x + box.width, bottom = box.y + box.height;
    const shown = (value) => String(Number(value.toPrecision(4)));
    // Converts between a value of an axis and its place in the picture.
    const x = { per: box.width / (limits.x[1] - limits.x[0]) };
    x.at = (value) => scale * (box.x + (value - limits.x[0]) * x.per) + left;
    x.value = (place) => ((place - left) / scale - box.x) / x.per + limits.x[0];
    const y = { per: box.height / (limits.y[1] - limits.y[0]) };
    y.at = (value) => scale * (bottom - (value - limits.y[0]) * y.per) + top;
    y.value = (place) => (bottom - (place - top) / scale) / y.per + limits.y[0];
    for (const value of ticks(y.value(bottom), y.value(box.y), Math.max(4, Math.round(box.height / 70)))) {
      const at = y.at(value);
      axisMark("line", { class: "grid", x1: box.x, x2: right, y1: at, y2: at });
      axisMark("text", { class: "tick", x: box.x - 6, y: at + 4, "text-anchor": "end" }, shown(value));
    }
    for (const value of ticks(x.value(box.x), x.value(right), 6)) {
      axisMark("text", { class: "tick", x: x.at(value), y: bottom + 16, "text-anchor": "middle" }, shown(value));
    }
  }

  function show(newScale, newLeft, newTop) {
    scale = Math.min(Math.max(newScale, 1), MAX_SCALE);
    const inside = (shift, low, size) => Math.max(Math.min(shift, (1 - scale) * low), (1 - scale) * (low + size));
    left = inside(newLeft, box.x, box.width);
    top = inside(newTop, box.y, box.height);
    points.setAttribute("transform", `translate(${left} ${top}) scale(${scale})`);
    // Points and names keep their size.
    points.style.setProperty("--unzoom", 1 / scale);
    drawAxes();
  }

  function zoom(factor, at = { x: box.x + box.width / 2, y: box.y + box.height / 2 }) {
    const grown = Math.min(Math.max(scale * factor, 1), MAX_SCALE) / scale;
    show(scale * grown, at.x + grown * (left - at.x), at.y + grown * (top - at.y));
  }

  // Moves the view if a point is outside it.
  function bringIntoView(row) {
    const { x, y, width, height } = shapes.get(row).getBBox();
    const at = { x: scale * (x + width / 2) + left, y: scale * (y + height / 2) + top };
    const isInside = at.x >= box.x && at.x <= box.x + box.width && at.y >= box.y && at.y <= box.y + box.height;
    if (!isInside) show(scale, left + box.x + box.width / 2 - at.x, top + box.y + box.height / 2 - at.y);
  }

  const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());

  const bar = element("div", figure, { className: "bar" });
  figure.insertBefore(bar, picture);
  const button = (text, name, work) =>
    element("button", bar, { type: "button", title: name, ariaLabel: name, onclick: work }, text);
  button("+", "Zoom in", () => zoom(2));
  button("−", "Zoom out", () => zoom(0.5));
  button("↺", "Show the whole picture", () => show(1, 0, 0));
  const search = element("input", bar, {
    type: "search", placeholder: "row number or name", ariaLabel: "Find a row by its number or a part of its name",
  });
  const tip = element("div", figure, { className: "tip", hidden: true });
  const list = element("div", figure, { className: "nearest" });
  list.setAttribute("aria-live", "polite");
  element("p", list, { className: "note" }, "Select a point to see the rows that are nearest to it in all dimensions.");

  function choose(row) {
    for (const shape of points.querySelectorAll(".chosen, .near")) shape.classList.remove("chosen", "near");
    shapes.get(row).classList.add("chosen");
    bringIntoView(row);
    list.replaceChildren();
    element("b", list, {}, titles.get(row));
    const near = found.nearest[row];
    if (near === undefined || near.length === 0) {
      const why = `The report has no nearest rows of this one; it has those of ${found.searched} points.`;
      element("p", list, { className: "note" }, why);
      return;
    }
    const lines = element("ol", list);
    for (const [other, cosine] of near) {
      const line = element("li", lines);
      const name = found.names[other];
      if (shapes.has(String(other))) {
        shapes.get(String(other)).classList.add("near");
        element("button", line, { type: "button", onclick: () => choose(String(other)) }, titles.get(String(other)));
      } else {
        element("span", line, {}, name ? `row ${other} · ${name}` : `row ${other}`);
      }
      element("span", line, { className: "note" }, ` cosine ${cosine.toFixed(3)}`);
    }
  }

  search.addEventListener("change", () => {
    const wanted = search.value.trim().toLowerCase();
    if (!wanted) return;
    const named = [...titles].find(([, title]) => title.toLowerCase().includes(wanted));
    if (titles.has(wanted) || named) choose(titles.has(wanted) ? wanted : named[0]);
    else list.replaceChildren(`No point of this picture has "${search.value}" in its number or name.`);
  });

  let pressed = null;
  picture.tabIndex = 0;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = { row: event.target.dataset.row, at: place(event), x: event.clientX, y: event.clientY, isMoved: false };
    pressed.left = left;
    pressed.top = top;
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    if (pressed !== null) {
      pressed.isMoved ||= Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) > 3;
      const at = place(event);
      if (pressed.isMoved) show(scale, pressed.left + at.x - pressed.at.x, pressed.top + at.y - pressed.at.y);
    }
    const row = event.target.dataset.row;
    tip.hidden = row === undefined || pressed !== null;
    if (tip.hidden) return;
    const frame = figure.getBoundingClientRect();
    tip.textContent = titles.get(row);
    tip.style.left = `${Math.min(event.clientX - frame.left + 12, frame.width - tip.offsetWidth)}px`;
    tip.style.top = `${event.clientY - frame.top + 14}px`;
  });
  picture.addEventListener("pointerleave", () => (tip.hidden = true));
  picture.addEventListener("pointercancel", () => (pressed = null));
  picture.addEventListener("pointerup", () => {
    if (pressed !== null && !pressed.isMoved && pressed.row !== undefined) choose(pressed.row);
    pressed = null;
  });
  picture.addEventListener("wheel", (event) => {
    // Without focus or Ctrl the wheel scrolls the page.
    if (!event.ctrlKey && document.activeElement !== picture) return;
    event.preventDefault();
    zoom(2 ** (-event.deltaY / 200), place(event));
  }, { passive: false });
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    if (event.key in moves) show(scale, left + moves[event.key][0], top + moves[event.key][1]);
    else if (event.key === "+" || event.key === "=") zoom(2);
    else if (event.key === "-") zoom(0.5);
    else if (event.key === "0") show(1, 0, 0);
    else return;
    event.preventDefault();
  });
}

document.querySelectorAll("figure.rows").forEach(activate);
