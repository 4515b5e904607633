// Page: the parts put together.

function fileName(path) {
  return visible(path.split(/[\\/]/).pop() || path);
}

function tile(term, main, below, kind) {
  const made = element("div", { class: `tile ${kind ?? ""}` }, element("dt", {}, term), element("dd", {}, main));
  if (below) made.append(element("dd", {}, below));
  return made;
}

function dtypeTile(file) {
  const entries = Object.entries(file.dtypes).sort((a, b) => b[1].nbytes - a[1].nbytes);
  const share = element("div", { class: "share", "aria-hidden": "true" });
  const legend = element("ul", { class: "legend" });
  for (const [name, totals] of entries) {
    const hue = `hue-${dtypeNames.indexOf(name) % 8}`;
    const part = element("span", { class: hue });
    part.style.flexGrow = String(totals.nbytes / (file.total.nbytes || 1));
    share.append(part);
    const text = `${counted(totals.tensors, "tensor")}, ${bytes(totals.nbytes)}`;
    legend.append(element("li", {}, element("i", { class: hue }), element("b", {}, name), ` ${text}`));
  }
  return element("div", { class: "tile wide" }, element("dt", {}, "Dtypes"), element("dd", { class: "bare" }, share, legend));
}

function drawHeading() {
  const main = overview.files[overview.files.length - 1];
  const heading = find("heading");
  const title = element("h1", { id: "title" });
  overview.files.forEach((file, at) => {
    if (at) title.append(element("span", { class: "versus" }, " → "));
    title.append(element("bdi", { title: visible(file.path) }, fileName(file.path)));
  });
  heading.append(title);
  const paths = overview.files.map((file) => visible(file.path)).join(" → ");
  if (paths !== title.textContent) heading.append(element("p", { class: "path quiet small" }, paths));
  const chips = element("div", { class: "chips" });
  for (const text of [main.format, main.variant, main.layout ? `layout: ${main.layout}` : "layout unknown"]) {
    if (text) chips.append(element("span", { class: "chip" }, visible(text)));
  }
  heading.append(chips);
  const tiles = element("dl", { class: "tiles" });
  tiles.append(
    tile("Tensors", whole(main.total.tensors), isDiff ? "in the second file" : null),
    tile("Parameters", short(main.total.elements), whole(main.total.elements)),
    tile("Size", bytes(main.file_size), `${whole(main.file_size)} bytes`),
    dtypeTile(main),
    healthTile(),
  );
  heading.append(tiles);
}

function healthTile() {
  if (!overview.stats) return tile("Values", "not read", "made without statistics");
  const unsound = rows.filter((row) => row.unsound).length;
  if (!unsound) return tile("Values", "all finite", "no NaN, no Inf", "good");
  return tile("Values", counted(unsound, "tensor"), "with NaN, Inf or unreadable values", "bad");
}

function drawChanges(table) {
  if (!isDiff) return;
  const section = find("changes");
  section.hidden = false;
  section.append(element("div", { class: "bar" }, element("h2", { id: "changes-title" }, "What changed")));
  const counts = STATUSES.map((status) => [status, overview.diff.counts[status]]).filter(([, count]) => count);
  const buttons = counts.map(([status, count]) => {
    const content = [element("b", {}, whole(count)), badge(status)];
    const button = element("button", { type: "button", class: "status", "aria-pressed": "false" }, ...content);
    const isOn = () => button.getAttribute("aria-pressed") === "true";
    button.addEventListener("click", () => table.change({ status: isOn() ? "" : status }));
    return button;
  });
  table.whenChanged((wanted) => {
    counts.forEach(([status], at) => buttons[at].setAttribute("aria-pressed", String(wanted.status === status)));
  });
  section.append(element("div", { class: "statuses" }, ...buttons));
  if (!rows.length) section.append(element("p", { class: "quiet" }, "Neither file has tensors."));
  const { layout, notes } = overview.diff;
  const told = layout ? [`The files have different layouts; both were compared in that of ${layout}.`, ...notes] : notes;
  if (told.length) section.append(sentences(told));
}

function card(title, ...content) {
  return element("div", { class: "card" }, element("h2", {}, title), ...content);
}

function sentences(texts) {
  return element("ul", {}, ...texts.map((text) => element("li", {}, visible(text))));
}

function drawAbout() {
  const about = find("about");
  for (const file of overview.files) {
    const of = isDiff ? ` of ${fileName(file.path)}` : "";
    about.append(card(`Layout${of}: ${file.layout ?? "unknown"}`, sentences([...file.evidence, ...file.notes])));
    const metadata = Object.entries(file.metadata).map(([key, value]) => [visible(key), lines(value)]);
    const scalars = Object.entries(file.scalars).map(([key, scalar]) => [visible(key), `${scalar.value} (${scalar.kind})`]);
    const listed = [...metadata, ...scalars];
    about.append(card(`Metadata${of}`, listed.length ? pairs(listed) : element("p", { class: "quiet" }, "There is none.")));
  }
}

// Texts and numbers beside the tensors that are not the same in both files.
function drawOtherChanges() {
  if (!isDiff) return;
  const told = (value) => (value === null ? "–" : typeof value === "string" ? lines(value) : String(value.value));
  const changed = [...Object.entries(overview.diff.metadata), ...Object.entries(overview.diff.scalars)];
  if (!changed.length) return;
  find("about").append(card("Metadata that changed", pairs(changed.map(([key, [a, b]]) => [visible(key), `${told(a)} → ${told(b)}`]))));
}

function lines(text) {
  return text.split("\n").map(visible).join("\n");
}

// --- light and dark: what the system prefers, unless a choice was made before ---

function makeTheme() {
  const button = find("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("burnstore-theme");
  } catch {
    // Some browsers keep nothing for files: the choice then lasts as long as the page.
  }
  function show() {
    const isDark = (chosen ?? (system.matches ? "dark" : "light")) === "dark";
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark));
  }
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("burnstore-theme", chosen);
    } catch {
      // As above.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}

makeTheme();
drawHeading();
const table = makeTable();
drawChanges(table);
drawAbout();
drawOtherChanges();
const treemap = makeTreemap({
  onScope: (node) => table.change({ scope: node.parent ? node.path : null }),
  onTensor: (row) => table.reveal(row),
});
find("scope").addEventListener("click", () => treemap.zoom(tree));
treemap.zoom(tree, { focus: false });
// A link such as report.html#layers.0.weight opens that tensor.
function followLink() {
  let name;
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch {
    return; // not an address of ours
  }
  const row = name && rows.find((each) => each.name === name);
  if (row) table.reveal(row);
}
addEventListener("hashchange", followLink);
followLink();
find("footer").textContent = `Made by burnstore ${overview.burnstore}. Everything on this page is in this file; nothing is loaded or sent.`;
requestAnimationFrame(() => performance.mark("ready"));
