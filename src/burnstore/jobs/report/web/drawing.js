// Drawing: histograms as SVG, small ones for the table and one to read.
// A histogram is [first, exponent, counts]: bar i reaches from (first + i) to (first + i + 1) times 2 ** exponent.

const SVG = "http://www.w3.org/2000/svg";

function shape(kind, attributes, ...children) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Where the bars of these histograms lie within 100 × 100. Positions are in units of the narrowest bars, not in values,
// which may be close to the largest number there is; of wider bars the height is what a unit of the axis holds.
function axes(histograms, isLog) {
  const unit = Math.min(...histograms.map(([, exponent]) => exponent));
  const place = ([first, exponent], at) => (first + at) * 2 ** (exponent - unit);
  const held = ([, exponent], count) => count / 2 ** (exponent - unit);
  const low = Math.min(...histograms.map((each) => place(each, 0)));
  const high = Math.max(...histograms.map((each) => place(each, each[2].length)));
  const most = Math.max(...histograms.map((each) => held(each, Math.max(...each[2]))));
  return {
    x: (histogram, at) => ((100 * (place(histogram, at) - low)) / (high - low)).toFixed(2),
    y: (histogram, count) => {
      const share = isLog ? Math.log1p(held(histogram, count)) / Math.log1p(most) : held(histogram, count) / most;
      return (100 - Math.max(100 * share, count ? 1.5 : 0)).toFixed(2); // what counts anything is seen
    },
    low: low * 2 ** unit,
    high: Math.min(high * 2 ** unit, Number.MAX_VALUE),
  };
}

function barsPath(histogram, { x, y }) {
  const bars = histogram[2].map((count, at) => (count ? `M${x(histogram, at)} 100V${y(histogram, count)}H${x(histogram, at + 1)}V100Z` : ""));
  return bars.join("");
}

function outlinePath(histogram, { x, y }) {
  const steps = histogram[2].map((count, at) => `V${y(histogram, count)}H${x(histogram, at + 1)}`);
  return `M${x(histogram, 0)} 100${steps.join("")}V100`;
}

function sparkline(histogram) {
  const drawn = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(shape("path", { class: "bars", d: barsPath(histogram, axes([histogram], false)) }));
  return drawn;
}

// A chart of one histogram, or of two over each other; `draw` draws it anew with heights as they are or as logarithms.
function chart(histograms, label) {
  const drawn = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
  const draw = (isLog) => {
    const scale = axes(histograms, isLog);
    const [main, other] = histograms;
    drawn.replaceChildren(
      shape("path", { class: "bars", d: barsPath(main, scale) }),
      shape("path", { class: "axis", d: "M0 100H100" }),
    );
    if (other) drawn.append(shape("path", { class: "bars-other", d: outlinePath(other, scale) }));
    return scale;
  };
  return { drawn, draw };
}
