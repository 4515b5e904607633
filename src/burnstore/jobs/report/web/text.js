// Text: numbers for people, and names from files made visible.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

// Characters that show as nothing, or turn the text around them, become escapes: no name looks like another.
function visible(text) {
  return text.replace(UNSEEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

function whole(number) {
  return number.toLocaleString("en-US");
}

function counted(number, word) {
  return `${whole(number)} ${word}${number === 1 ? "" : "s"}`;
}

function short(number) {
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e4]]) {
    if (number >= size) return `${(number / (unit === "K" ? 1e3 : size)).toPrecision(3)} ${unit}`;
  }
  return whole(number);
}

function bytes(number) {
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1023.95) break;
    number /= 1024;
    unit = larger;
  }
  return unit === "B" ? `${number} B` : `${number.toFixed(1)} ${unit}`;
}

// Four digits tell enough; integers too large for JavaScript come as text and stay as they are.
function figure(number) {
  if (number === null || number === undefined) return "–";
  if (typeof number === "string") return number;
  if (Number.isInteger(number) && Math.abs(number) < 1e7) return String(number);
  const size = Math.abs(number);
  return size < 1e-3 || size >= 1e7 ? number.toExponential(2).replace("e+", "e") : String(Number(number.toPrecision(4)));
}

function percent(part, total) {
  if (!total) return "–";
  const share = (100 * part) / total;
  return share > 0 && share < 0.1 ? "< 0.1 %" : `${share.toFixed(share < 10 ? 1 : 0)} %`;
}

function shapeText(shape) {
  return shape.length ? shape.join(" × ") : "scalar";
}

// An element with its attributes and children; texts become text nodes, never markup.
function element(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function find(id) {
  return document.getElementById(id);
}
