// Rows: the tensors of the file, or of both files matched with each other, and their tree by module.

const overview = JSON.parse(find("overview").textContent);
const isDiff = overview.diff !== null;
const STATUSES = ["changed", "dtype changed", "shape changed", "added", "removed", "moved", "close", "equal"];

let detailLines = null;

// Histograms and outliers are most of the data: a line for each tensor, parsed when it comes into view.
function detailsOf(side, at) {
  detailLines ??= find("details").textContent.split("\n");
  const before = side === 0 ? 0 : overview.files[0].tensors.name.length;
  const [histogram, outliers, image] = JSON.parse(detailLines[before + at]);
  return { histogram, outliers, image };
}

// One entry of a table that is given as columns.
function entryAt(columns, at) {
  const entry = {};
  for (const key of Object.keys(columns)) entry[key] = columns[key][at];
  return entry;
}

function tensorAt(side, at) {
  return { ...entryAt(overview.files[side].tensors, at), side, at };
}

function asRow(tensor, order) {
  const row = { ...tensor, order };
  row.label = visible(row.name);
  row.search = row.name.toLowerCase();
  row.unsound = row.nan > 0 || row.inf > 0 || row.problem !== null;
  return row;
}

// A tensor that stands in neither file as it was compared: of other layouts, taken apart or renamed.
const UNREAD = { problem: null, nbytes: 0, offset: null, file: null, param_id: null, side: null };
for (const key of ["min", "max", "mean", "std", "nan", "inf", "zeros", "z"]) UNREAD[key] = null;

function matchedRow(order) {
  const { before, after, problem, ...change } = entryAt(overview.diff.tensors, order);
  const sides = [before === null ? null : tensorAt(0, before), after === null ? null : tensorAt(1, after)];
  const main = sides[1] ?? sides[0] ?? { ...UNREAD, nbytes: change.nbytes };
  const shape = change.new_shape ?? change.shape;
  const row = asRow({
    ...main,
    name: change.new_name ?? change.name,
    dtype: main.dtype ?? change.new_dtype ?? change.dtype,
    shape,
    elements: shape.reduce((product, extent) => product * extent, 1),
  }, order);
  const { status, differing, max_abs, max_ulp, rel_l2, cosine } = change;
  return Object.assign(row, { status, differing, max_abs, max_ulp, rel_l2, cosine, sides, change, note: problem });
}

function matchedRows() {
  return overview.diff.tensors.status.map((_, order) => matchedRow(order));
}

function singleRows() {
  return overview.files[0].tensors.name.map((_, at) => asRow(tensorAt(0, at), at));
}

const rows = isDiff ? matchedRows() : singleRows();

// Names deeper than this are cut into no more segments: a name of dots only must not make a tree of thousands of levels.
const DEEPEST = 40;

function branch(label, path, parent) {
  return { label, path, parent, children: new Map(), own: [], elements: 0, count: 0 };
}

function buildTree() {
  const root = branch("all", "", null);
  for (const row of rows) {
    const segments = row.name.split(".");
    if (segments.length > DEEPEST) segments.push(segments.splice(DEEPEST - 1).join("."));
    let node = root;
    let path = "";
    for (const segment of segments) {
      path = node === root ? segment : `${path}.${segment}`;
      if (!node.children.has(segment)) node.children.set(segment, branch(visible(segment) || "(no name)", path, node));
      node = node.children.get(segment);
    }
    node.own.push(row);
    for (let above = node; above; above = above.parent) {
      above.elements += row.elements;
      above.count += 1;
    }
  }
  return root;
}

// The tensor that a node is, if it is nothing else.
function tensorOf(node) {
  return node.children.size === 0 && node.own.length === 1 ? node.own[0] : null;
}

// What a module consists of, largest first. A tensor may have the name of a module: then it stands beside its children.
function partsOf(node) {
  const parts = [...node.children.values()];
  for (const row of node.own) {
    parts.push({ ...branch("(itself)", node.path, node), own: [row], elements: row.elements, count: 1 });
  }
  return parts.sort((a, b) => b.elements - a.elements);
}

const tree = buildTree();
