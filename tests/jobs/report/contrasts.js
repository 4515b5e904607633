// Every text that is seen, with its contrast to what is behind it (as WCAG 2 defines it), least first.
const parsed = (colour) => {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return parts.length === 3 ? [...parts, 1] : parts;
};
const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
const background = (node) => {
  const layers = [];
  for (let each = node; each; each = each.parentElement) layers.push(parsed(getComputedStyle(each).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
};
const luminance = (colour) => {
  const [r, g, b] = colour.map((part) => part / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("script, style, svg")) continue;
  const below = background(node);
  const style = getComputedStyle(node);
  const ink = parsed(style.color);
  let opacity = ink[3];
  for (let each = node; each; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
  const [a, b] = [luminance(over([...ink.slice(0, 3), opacity], below)), luminance(below)];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.className, walker.currentNode.textContent.slice(0, 30)]);
}
return found.sort((x, y) => x[0] - y[0]);
