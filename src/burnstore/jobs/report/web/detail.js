// Detail: everything about one tensor, or about both of a pair.

function pairs(entries) {
  const list = element("dl", { class: "pairs" });
  for (const [term, value] of entries) {
    if (value !== null && value !== undefined) list.append(element("dt", {}, term), element("dd", {}, value));
  }
  return list;
}

function detailOf(row) {
  const sides = (row.sides ?? [row]).filter((side) => side !== null);
  const sheet = element("div", { class: "sheet" });
  sheet.append(element("p", { class: "full" }, row.label));
  if (row.note) sheet.append(element("p", { class: "problem" }, visible(row.note)));
  for (const side of sides) {
    if (side.problem) sheet.append(element("p", { class: "problem" }, `The values cannot be shown: ${visible(side.problem)}`));
  }
  const main = sides[sides.length - 1] ?? row;
  const parts = element("div", { class: "parts" });
  parts.append(chartPart(sides), imagePart(main), factsPart(main, row), outliersPart(main));
  sheet.append(parts);
  return sheet;
}

function chartPart(sides) {
  const part = element("div", { class: "chart" });
  const bar = element("div", { class: "chart-bar" }, element("h3", {}, "Histogram"));
  part.append(bar);
  const [main, other] = [...sides].reverse();
  const histograms = [main, other].map((side) => (side ? detailsOf(side.side, side.at).histogram : null));
  if (histograms[0] === null) {
    part.append(element("p", { class: "quiet" }, whyNoHistogram(main)));
    return part;
  }
  const drawable = histograms.filter((each) => each !== null);
  const label = `Histogram of ${counted(drawable[0][2].length, "bar")} from ${figure(main.min)} to ${figure(main.max)}`;
  const { drawn, draw } = chart(drawable, label);
  const { low, high } = draw(false);
  const toggle = element("button", { type: "button", class: "plain", "aria-pressed": "false" }, "log");
  toggle.title = "Heights as logarithms, so that rare values show";
  toggle.addEventListener("click", (event) => {
    event.stopPropagation();
    const isLog = toggle.getAttribute("aria-pressed") === "false";
    toggle.setAttribute("aria-pressed", String(isLog));
    draw(isLog);
  });
  if (drawable.length > 1) bar.append(element("span", { class: "quiet small" }, "bars: second file, line: first file"));
  bar.append(toggle);
  const scale = element("div", { class: "scale" }, element("span", {}, figure(low)), element("span", {}, figure(high)));
  part.append(drawn, scale);
  return part;
}

function imagePart(tensor) {
  const part = element("div", { class: "image" }, element("h3", {}, "Image"));
  const image = tensor.side === null ? null : detailsOf(tensor.side, tensor.at).image;
  if (!image) {
    part.append(element("p", { class: "quiet" }, tensor.shape?.length > 1 && overview.stats ? "There is none of these values." : "Only of tensors with two axes or more."));
    return part;
  }
  const [height, width, rows, columns, low, high] = image;
  const isWhole = height === rows && width === columns;
  const told = isWhole ? `${rows} × ${columns}` : `${height} of ${whole(rows)} rows, ${width} of ${whole(columns)} columns`;
  const drawn = heatMap(image, `Heat map of the values, ${told}, from ${figure(low)} to ${figure(high)}`);
  const scale = element("div", { class: "scale" }, element("span", {}, figure(low)), element("span", {}, figure(high)));
  part.append(drawn.image, drawn.bar, scale, element("p", { class: "quiet small" }, told));
  return part;
}

function whyNoHistogram(tensor) {
  if (!overview.stats || !tensor) return "The values were not read for it.";
  if (tensor.min === null) return "There are no finite numbers.";
  return `Every value is ${figure(tensor.min)}.`;
}

// What became of a value, where it did not stay.
function became(before, after) {
  return before === null || after === null || before === after ? null : `${before} → ${after}`;
}

function given(number) {
  return number === null ? null : figure(number);
}

function factsPart(tensor, row) {
  const figures = overview.stats && tensor.side !== null
    ? [
        ["mean", figure(tensor.mean)],
        ["std", figure(tensor.std)],
        ["min", figure(tensor.min)],
        ["max", figure(tensor.max)],
        ["zeros", tensor.zeros === null ? null : tensor.zeros ? `${whole(tensor.zeros)} (${percent(tensor.zeros, tensor.elements)})` : "none"],
        ["NaN, Inf", tensor.nan === null ? null : tensor.nan || tensor.inf ? `${whole(tensor.nan)}, ${whole(tensor.inf)}` : "none"],
      ]
    : [];
  const { change } = row;
  const changes = isDiff
    ? [
        ["change", change.status],
        ["name", became(change.name, change.new_name) && visible(became(change.name, change.new_name))],
        ["dtype", became(change.dtype, change.new_dtype)],
        ["shape", became(change.shape && shapeText(change.shape), change.new_shape && shapeText(change.new_shape))],
        ["differing", row.differing === null ? null : `${whole(row.differing)} of ${whole(row.elements)} values`],
        ["max |Δ|", given(row.max_abs)],
        ["max ulp", given(row.max_ulp)],
        ["relative L2", given(row.rel_l2)],
        ["cosine", given(row.cosine)],
      ]
    : [];
  return element(
    "div",
    {},
    element("h3", {}, "Figures"),
    pairs([
      ...changes,
      ...figures,
      ["size", tensor.offset === null ? bytes(tensor.nbytes) : `${bytes(tensor.nbytes)} at byte ${whole(tensor.offset)}`],
      ["file", tensor.file ? visible(tensor.file) : null],
      ["parameter id", tensor.param_id],
    ]),
  );
}

function outliersPart(tensor) {
  const part = element("div", {}, element("h3", {}, "Furthest from the mean"));
  const outliers = tensor.side === null ? [] : detailsOf(tensor.side, tensor.at).outliers;
  if (!outliers.length) {
    part.append(element("p", { class: "quiet" }, "None."));
    return part;
  }
  const body = element("tbody");
  for (const [index, value, z] of outliers) {
    const place = index.length ? `[${index.join(", ")}]` : "";
    body.append(
      element(
        "tr",
        {},
        element("td", { class: "index" }, place),
        element("td", { class: "number" }, figure(value)),
        element("td", { class: "number" }, `${z > 0 ? "+" : "−"}${figure(Math.abs(z))} σ`),
      ),
    );
  }
  const titles = element(
    "tr",
    {},
    element("th", { scope: "col" }, "index"),
    element("th", { scope: "col", class: "number" }, "value"),
    element("th", { scope: "col", class: "number" }, "distance"),
  );
  part.append(element("table", { class: "outliers" }, element("thead", {}, titles), body));
  return part;
}
