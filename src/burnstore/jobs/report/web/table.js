// Table: all tensors, sorted and filtered; only the rows in view are in the document.

const ROW = 34;
const NARROW = 900; // of the table: parts of a sheet stand below each other
const OVERSCAN = 12;

const byName = new Intl.Collator("en", { numeric: true });

// `value` is what a column is sorted by, as a number unless it `isText`; `show` gives what is seen.
const COLUMNS = [
  { title: "Name", width: "auto", kind: "name", isText: true, value: (row) => row.name, show: nameOf },
  isDiff && { title: "Change", width: "8.2rem", value: (row) => STATUSES.indexOf(row.status), show: (row) => badge(row.status) },
  { title: "Dtype", width: "5rem", isText: true, value: (row) => row.dtype, show: (row) => row.dtype },
  { title: "Shape", width: "8.2rem", value: (row) => row.shape.length, show: (row) => shapeText(row.shape), hint: "sorted by rank" },
  { title: "Size", width: "5.8rem", kind: "number", value: (row) => row.nbytes, show: (row) => bytes(row.nbytes) },
  isDiff && { title: "Max |Δ|", width: "5.6rem", kind: "number", value: (row) => row.max_abs, show: (row) => figure(row.max_abs) },
  isDiff && { title: "Rel. L2", width: "5.6rem", kind: "number", value: (row) => row.rel_l2, show: (row) => figure(row.rel_l2) },
  overview.stats && { title: "Values", width: "6.6rem", kind: "spark", value: (row) => row.std, show: spark, hint: "sorted by spread" },
  overview.stats && { title: "Min", width: "5.4rem", kind: "number", value: (row) => row.min, show: (row) => figure(row.min) },
  overview.stats && { title: "Max", width: "5.4rem", kind: "number", value: (row) => row.max, show: (row) => figure(row.max) },
  overview.stats && !isDiff && { title: "Mean", width: "5.8rem", kind: "number", value: (row) => row.mean, show: (row) => figure(row.mean) },
  overview.stats && !isDiff && { title: "Std", width: "5.4rem", kind: "number", value: (row) => row.std, show: (row) => figure(row.std) },
  overview.stats && !isDiff && { title: "Max |z|", width: "5rem", kind: "number", value: (row) => row.z, show: (row) => figure(row.z), hint: "the value furthest from the mean, in standard deviations" },
  overview.stats && { title: "NaN", width: "3.9rem", kind: "number", value: (row) => row.nan, show: (row) => figure(row.nan), isBad: (row) => row.nan > 0 },
  overview.stats && { title: "Inf", width: "3.6rem", kind: "number", value: (row) => row.inf, show: (row) => figure(row.inf), isBad: (row) => row.inf > 0 },
].filter(Boolean);

function badge(status) {
  return element("span", { class: `badge is-${status.split(" ").pop()}` }, status);
}

// Where there is little room, the beginning of a name gives way, then what is before its last two segments. Numbers
// stay: they are what differs between layers.
function nameOf(row) {
  const runs = [];
  const segments = row.label.split(".");
  segments.forEach((segment, at) => {
    const kind = /^\d+$/.test(segment) ? "number" : at >= segments.length - 2 ? "last" : "text";
    const text = at < segments.length - 1 ? `${segment}.` : segment;
    if (runs.length && runs[runs.length - 1].kind === kind) runs[runs.length - 1].text += text;
    else runs.push({ kind, text });
  });
  return element("span", { class: "ends" }, ...runs.map(({ kind, text }, at) => element("span", { class: kind === "text" && at ? "middle" : kind }, text)));
}

function spark(row) {
  if (row.problem) return element("span", { class: "problem" }, "unreadable");
  if (row.side === null) return "";
  const sides = (row.sides ?? [row]).filter((side) => side !== null).reverse();
  const histograms = sides.map((side) => detailsOf(side.side, side.at).histogram).filter((each) => each !== null);
  return histograms.length ? sparkline(histograms) : "";
}

function makeTable() {
  const scroller = find("scroller");
  const table = find("table");
  const body = find("rows");
  const wanted = { text: "", dtype: "", status: "", unsound: false, scope: null };
  let sort = null; // { column, descending }
  let shown = rows;
  let active = 0;
  let open = null; // the row whose detail is shown
  let renderedHeight = 0;
  let renderedWidth = 0;
  let onChange = () => {};

  // --- titles ---

  const titles = COLUMNS.map((column) => {
    const button = element("button", { type: "button", title: column.hint }, column.title);
    button.addEventListener("click", () => sortBy(column));
    return element("th", { scope: "col", class: column.kind === "number" ? "number" : null, "aria-sort": "none" }, button);
  });
  find("titles").append(...titles);
  find("columns").append(...COLUMNS.map((column) => {
    const made = element("col");
    made.style.width = column.width;
    return made;
  }));

  // Up, down, and back to the order of the file.
  function sortBy(column) {
    const isNumber = column.kind === "number" || column.kind === "spark";
    const orders = isNumber ? [true, false] : [false, true]; // of numbers the largest are looked for
    if (sort?.column !== column) sort = { column, descending: orders[0] };
    else if (sort.descending === orders[0]) sort = { column, descending: orders[1] };
    else sort = null;
    COLUMNS.forEach((each, at) => {
      const order = sort?.column !== each ? "none" : sort.descending ? "descending" : "ascending";
      titles[at].setAttribute("aria-sort", order);
    });
    update();
  }

  // --- which rows, in which order ---

  function matcher(text) {
    const problem = find("filter-problem");
    problem.hidden = true;
    const pattern = /^\/(.*)\/(i?)$/s.exec(text);
    if (!pattern) {
      const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
      return (row) => parts.every((part) => row.search.includes(part));
    }
    try {
      const compiled = new RegExp(pattern[1], `u${pattern[2]}`);
      return (row) => compiled.test(row.name);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      return () => true;
    }
  }

  function isBelow(row, scope) {
    return scope === null || row.name === scope || row.name.startsWith(`${scope}.`);
  }

  function update() {
    const matches = matcher(wanted.text);
    shown = rows.filter(
      (row) =>
        (!wanted.dtype || row.dtype === wanted.dtype) &&
        (!wanted.status || row.status === wanted.status) &&
        (!wanted.unsound || row.unsound) &&
        isBelow(row, wanted.scope) &&
        matches(row),
    );
    if (sort) {
      const { column, descending } = sort;
      const direction = descending ? -1 : 1;
      const compared = column.isText ? byName.compare : (a, b) => Number(a) - Number(b); // large integers are given as text
      const keyed = shown.map((row) => [column.value(row) ?? null, row]);
      keyed.sort(([a, rowA], [b, rowB]) => {
        if (a === null || b === null) return (a === null) - (b === null) || rowA.order - rowB.order; // unknown ones last
        return direction * compared(a, b) || rowA.order - rowB.order;
      });
      shown = keyed.map(([, row]) => row);
    }
    const elements = shown.reduce((sum, row) => sum + row.elements, 0);
    const total = shown.length === rows.length ? "" : ` of ${whole(rows.length)}`;
    find("shown").textContent = `${whole(shown.length)}${total}, ${short(elements)} parameters`;
    table.setAttribute("aria-rowcount", String(shown.length + 1));
    if (!shown.includes(open)) open = null;
    active = 0;
    scroller.scrollTop = 0;
    render();
  }

  // --- the rows in view ---

  // With the line below it. A narrow sheet has its parts below each other, as high as the table allows.
  function sheetHeight() {
    if (scroller.clientWidth >= NARROW) return isDiff ? 431 : 331;
    return Math.max(Math.min(scroller.clientHeight - find("titles").offsetHeight - ROW, 640), 240);
  }

  function topOf(at) {
    const opened = open === null ? -1 : shown.indexOf(open);
    return at * ROW + (opened >= 0 && opened < at ? sheetHeight() : 0);
  }

  function gap(height) {
    const cell = element("td", { colspan: COLUMNS.length });
    cell.style.height = `${height}px`;
    return element("tr", { class: "gap", "aria-hidden": "true" }, cell);
  }

  function cellOf(column, row) {
    const classes = [column.kind, column.isBad?.(row) && "bad"].filter(Boolean).join(" ");
    return element("td", { class: classes || null, title: column.kind === "name" ? row.label : null }, column.show(row));
  }

  function rowOf(row, at) {
    const isOpen = row === open;
    const classes = ["item", isOpen && "open", at === active && "active"].filter(Boolean).join(" ");
    const made = element("tr", { id: `row-${at}`, class: classes, "aria-rowindex": at + 2, "aria-expanded": String(isOpen) });
    made.append(...COLUMNS.map((column) => cellOf(column, row)));
    made.addEventListener("click", () => {
      active = at;
      toggle(row);
    });
    return made;
  }

  function render() {
    const opened = open === null ? -1 : shown.indexOf(open);
    const total = shown.length * ROW + (opened >= 0 ? sheetHeight() : 0);
    const top = scroller.scrollTop;
    renderedHeight = scroller.clientHeight;
    renderedWidth = scroller.clientWidth;
    const from = top - (opened >= 0 && topOf(opened + 1) <= top ? sheetHeight() : 0);
    const first = Math.max(Math.floor(from / ROW) - OVERSCAN, 0);
    const last = Math.min(Math.ceil((top + renderedHeight) / ROW) + OVERSCAN, shown.length);
    const made = [];
    let height = topOf(first);
    if (height) made.push(gap(height));
    for (let at = first; at < last; at += 1) {
      made.push(rowOf(shown[at], at));
      height += ROW;
      if (at === opened) {
        const sheet = detailOf(open);
        sheet.style.height = `${sheetHeight() - 1}px`;
        sheet.style.width = `${scroller.clientWidth}px`;
        made.push(element("tr", { class: "detail" }, element("td", { colspan: COLUMNS.length }, sheet)));
        height += sheetHeight();
      }
    }
    if (height < total) made.push(gap(total - height));
    if (!shown.length) made.push(element("tr", {}, element("td", { colspan: COLUMNS.length, class: "quiet" }, "No tensor matches.")));
    body.replaceChildren(...made);
    if (active >= first && active < last) table.setAttribute("aria-activedescendant", `row-${active}`);
    else table.removeAttribute("aria-activedescendant");
  }

  let isWaiting = false;
  scroller.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      render();
    });
  });
  new ResizeObserver(() => {
    if (scroller.clientHeight !== renderedHeight || scroller.clientWidth !== renderedWidth) render();
  }).observe(scroller);

  // --- one tensor ---

  function toggle(row) {
    open = open === row ? null : row;
    keepInView();
    render();
    linkTo(open);
  }

  // The address of the page leads to the tensor that is open.
  function linkTo(row) {
    history.replaceState(null, "", row === null ? location.pathname + location.search : `#${encodeURIComponent(row.name)}`);
  }

  function keepInView() {
    const head = find("titles").offsetHeight;
    const top = topOf(active);
    const bottom = top + ROW + (shown[active] === open ? Math.min(sheetHeight(), scroller.clientHeight - head - ROW) : 0);
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (bottom > scroller.scrollTop + scroller.clientHeight - head) scroller.scrollTop = bottom - scroller.clientHeight + head;
  }

  function reveal(row) {
    if (!shown.includes(row)) clear();
    active = shown.indexOf(row);
    open = row;
    linkTo(row);
    render(); // before scrolling: the room must be there
    scroller.scrollTop = topOf(active);
    render();
    scroller.scrollIntoView({ block: "nearest" });
    table.focus({ preventScroll: true });
  }

  table.addEventListener("keydown", (event) => {
    if (event.target !== table) return; // buttons and selects have keys of their own
    const page = Math.max(Math.floor(scroller.clientHeight / ROW) - 2, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      active = Math.min(Math.max(active + steps[event.key], 0), Math.max(shown.length - 1, 0));
      keepInView();
      render();
    } else if ((event.key === "Enter" || event.key === " ") && shown.length) {
      toggle(shown[active]);
    } else if (event.key === "Escape" && open !== null) {
      toggle(open);
    } else {
      return;
    }
    event.preventDefault();
  });

  if (isDiff) sortBy(COLUMNS.find((column) => column.title === "Change")); // what changed comes first

  // --- filters ---

  const fields = { text: find("filter"), dtype: find("filter-dtype"), status: find("filter-status"), unsound: find("filter-unsound") };
  for (const name of ["", ...dtypeNames]) fields.dtype.append(element("option", { value: name }, name || "any"));
  if (isDiff) {
    find("status-field").hidden = false;
    for (const name of ["", ...STATUSES.filter((status) => overview.diff.counts[status])]) {
      fields.status.append(element("option", { value: name }, name || "any"));
    }
  }
  fields.text.addEventListener("input", () => change({ text: fields.text.value.trim() }));
  fields.dtype.addEventListener("change", () => change({ dtype: fields.dtype.value }));
  fields.status.addEventListener("change", () => change({ status: fields.status.value }));
  fields.unsound.addEventListener("change", () => change({ unsound: fields.unsound.checked }));

  function change(changed) {
    Object.assign(wanted, changed);
    fields.status.value = wanted.status;
    fields.unsound.checked = wanted.unsound;
    const scope = find("scope");
    scope.hidden = wanted.scope === null;
    scope.textContent = wanted.scope === null ? "" : `below ${visible(wanted.scope)} ×`;
    update();
    onChange(wanted);
  }

  function clear() {
    fields.text.value = fields.dtype.value = "";
    change({ text: "", dtype: "", status: "", unsound: false });
  }

  return {
    change,
    reveal,
    whenChanged: (callback) => {
      onChange = callback;
    },
  };
}
