// Treemap: the modules as areas in proportion to their parameters (squarified, after Bruls, Huizing and van Wijk).

const MOST_CELLS = 500;
const DEEPEST_DRAWN = 5;
const LEAST_AREA = 400; // of the parts inside a module, on average, in square pixels
const GAP = 2;
const LABEL = 22;

// Rectangles for sizes that are sorted, largest first: rows along the shorter side, each as square as it gets.
function squarify(sizes, left, top, width, height) {
  const found = [];
  let total = sizes.reduce((sum, size) => sum + size, 0);
  let at = 0;
  while (at < sizes.length && total > 0 && width > 0 && height > 0) {
    const side = Math.min(width, height);
    const scale = (width * height) / total;
    let end = at;
    let sum = 0;
    let best = Infinity;
    while (end < sizes.length) {
      const next = sum + sizes[end];
      const thickness = (next * scale) / side;
      const worst = Math.max(
        (sizes[at] * scale) / thickness / thickness,
        sizes[end] > 0 ? (thickness * thickness) / (sizes[end] * scale) : Infinity,
      );
      if (worst > best) break;
      best = worst;
      sum = next;
      end += 1;
    }
    if (end === at) break; // nothing but zeros is left
    const thickness = (sum * scale) / side;
    let offset = 0;
    for (; at < end; at += 1) {
      const length = (sizes[at] * scale) / thickness;
      found.push(width < height ? [left + offset, top, length, thickness] : [left, top + offset, thickness, length]);
      offset += length;
    }
    if (width < height) [top, height] = [top + thickness, height - thickness];
    else [left, width] = [left + thickness, width - thickness];
    total -= sum;
  }
  return found;
}

// The parts with an area; of very many the smallest are gathered into one.
function shownParts(node) {
  const parts = partsOf(node).filter((part) => part.elements > 0);
  if (parts.length <= MOST_CELLS) return parts;
  const rest = branch("smaller ones", node.path, node);
  for (const part of parts.splice(MOST_CELLS - 1)) {
    rest.children.set(part.label + rest.children.size, part);
    rest.elements += part.elements;
    rest.count += part.count;
  }
  rest.isRest = true;
  parts.push(rest);
  return parts.sort((a, b) => b.elements - a.elements);
}

// A module with a single part says nothing by itself: it is shown as that part, under both names.
function throughSingles(node) {
  const labels = [node.label];
  while (node.children.size === 1 && node.own.length === 0) {
    [node] = node.children.values();
    labels.push(node.label);
  }
  return { node, label: labels.join(".") };
}

// By what the areas are coloured: each gives the word that an area gets its hue for.
const dtypeNames = [...new Set(rows.map((row) => row.dtype))];
const COLOURS = {
  name: (node, label) => label.split(".").filter((segment) => !/^\d+$/.test(segment)).join(".") || "numbered",
  dtype: (node) => mostly(node, (row) => row.dtype),
  change: (node) => mostly(node, (row) => row.status),
};
const HUES = 8;
const OTHER = HUES - 1;

// What most parameters below a node are.
function mostly(part, kindOf) {
  const sums = new Map();
  const waiting = [part];
  while (waiting.length) {
    const node = waiting.pop();
    for (const row of node.own) sums.set(kindOf(row), (sums.get(kindOf(row)) ?? 0) + row.elements);
    for (const child of node.children.values()) waiting.push(child); // there may be too many for one call
  }
  return [...sums].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}

function makeTreemap({ onScope, onTensor }) {
  const area = find("treemap");
  const trail = find("trail");
  const colour = find("map-colour");
  let current = tree;
  let drawnWidth = 0;
  let painted = []; // what gets a hue: [area, word, parameters]

  for (const name of Object.keys(COLOURS)) {
    if (name !== "change" || isDiff) colour.append(element("option", { value: name }, `by ${name}`));
  }
  if (isDiff) colour.value = "change";
  colour.addEventListener("change", draw);

  function zoom(node, { focus = true } = {}) {
    current = node;
    draw();
    onScope(node.isRest ? node.parent : node);
    if (focus) (area.querySelector(".cell") ?? trail.querySelector("button"))?.focus({ preventScroll: true });
  }

  function up() {
    let above = current.parent;
    while (above?.parent && above.count === current.count) above = above.parent; // nothing more would be seen there
    if (above) zoom(above);
  }

  function drawTrail() {
    const steps = [];
    for (let node = current; node; node = node.parent) steps.unshift(node);
    trail.replaceChildren();
    steps.forEach((node, at) => {
      if (at) trail.append(element("span", { class: "quiet", "aria-hidden": "true" }, "›"));
      if (node === current) {
        trail.append(element("span", { "aria-current": "true" }, node.label));
        return;
      }
      const button = element("button", { type: "button" }, node.label);
      button.addEventListener("click", () => zoom(node));
      trail.append(button);
    });
    trail.append(element("span", { class: "quiet" }, `${counted(current.count, "tensor")}, ${short(current.elements)} parameters`));
  }

  function cellOf(part, box, at) {
    const { node, label } = throughSingles(part);
    const row = tensorOf(node);
    const share = percent(part.elements, current.elements);
    const what = row ? `tensor, ${shapeText(row.shape)}` : `module, ${counted(part.count, "tensor")}`;
    const cell = element("button", {
      type: "button",
      class: "cell",
      tabindex: at === 0 ? 0 : -1,
      "aria-label": `${label}, ${what}, ${short(part.elements)} parameters, ${share}`,
      title: `${label}\n${what}\n${whole(part.elements)} parameters, ${share}`,
    });
    fill(cell, node, label, box, 0);
    if (box[2] > 150 && box[3] > LABEL) cell.firstChild.append(element("small", {}, share));
    cell.addEventListener("click", () => (row ? onTensor(row) : zoom(node)));
    return cell;
  }

  // An area with its name and, as far as there is room, the areas of its parts: those are to be seen, not to be reached.
  function fill(made, node, label, [left, top, width, height], depth) {
    made.style.left = `${left}px`;
    made.style.top = `${top}px`;
    made.style.width = `${Math.max(width - GAP, 1)}px`;
    made.style.height = `${Math.max(height - GAP, 1)}px`;
    if (width > 30 && height > 16) made.append(element("span", { class: "label" }, label));
    const hasRoom = !tensorOf(node) && depth < DEEPEST_DRAWN && width > 50 && height > LABEL + 16;
    const parts = hasRoom ? shownParts(node) : [];
    if (!parts.length || (width * height) / parts.length < LEAST_AREA) {
      painted.push([made, COLOURS[colour.value](node, label), node.elements]);
      return;
    }
    const boxes = squarify(parts.map((part) => part.elements), 3, LABEL - 2, width - 6, height - LABEL);
    boxes.forEach((box, at) => {
      if (box[2] < 3 || box[3] < 3) return;
      const inner = element("span", { class: "inner" });
      const single = throughSingles(parts[at]);
      fill(inner, single.node, single.label, box, depth + 1);
      made.append(inner);
    });
  }

  // The words with the largest areas get hues of their own, all others share one.
  function paint() {
    const sums = new Map();
    for (const [, word, elements] of painted) sums.set(word, (sums.get(word) ?? 0) + elements);
    const words = [...sums].sort((a, b) => b[1] - a[1]).map(([word]) => word);
    const hue = new Map(words.map((word, at) => [word, Math.min(at, OTHER)]));
    for (const [made, word] of painted) made.classList.add(`hue-${hue.get(word)}`);
    const named = words.slice(0, words.length > HUES ? OTHER : HUES);
    const entries = named.map((word, at) => element("li", {}, element("i", { class: `hue-${at}` }), word));
    if (words.length > HUES) entries.push(element("li", {}, element("i", { class: `hue-${OTHER}` }), "others"));
    find("map-legend").replaceChildren(...entries);
  }

  function draw() {
    painted = [];
    drawnWidth = area.clientWidth;
    drawTrail();
    const parts = shownParts(throughSingles(current).node);
    const boxes = squarify(parts.map((part) => part.elements), GAP, GAP, drawnWidth - GAP, area.clientHeight - GAP);
    area.replaceChildren(...boxes.map((box, at) => cellOf(parts[at], box, at)));
    if (!boxes.length) area.append(element("p", { class: "quiet empty" }, "There are no parameters to show."));
    paint();
  }

  function middle(cell) {
    return [cell.offsetLeft + cell.offsetWidth / 2, cell.offsetTop + cell.offsetHeight / 2];
  }

  // The nearest cell in the direction of an arrow key; what lies straight ahead counts as nearer.
  function neighbour(from, key) {
    const [x, y] = middle(from);
    let best = null;
    let least = Infinity;
    for (const cell of area.querySelectorAll(".cell")) {
      const [dx, dy] = middle(cell).map((place, axis) => place - [x, y][axis]);
      const [ahead, aside] = { ArrowRight: [dx, dy], ArrowLeft: [-dx, dy], ArrowDown: [dy, dx], ArrowUp: [-dy, dx] }[key];
      const distance = ahead + 2 * Math.abs(aside);
      if (ahead > 1 && distance < least) [best, least] = [cell, distance];
    }
    return best;
  }

  area.addEventListener("keydown", (event) => {
    const from = event.target.closest(".cell");
    if (event.key === "Escape" || event.key === "Backspace") {
      event.preventDefault();
      up();
    } else if (from && event.key.startsWith("Arrow")) {
      event.preventDefault();
      const to = neighbour(from, event.key);
      if (!to) return;
      from.tabIndex = -1;
      to.tabIndex = 0;
      to.focus({ preventScroll: true });
    }
  });

  new ResizeObserver(() => {
    if (area.clientWidth !== drawnWidth) draw();
  }).observe(area);

  return { zoom };
}
