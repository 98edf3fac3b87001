// Every text that is seen, with the contrast of its colour and its ground (WCAG 2.2, relative
// luminance).
(() => {
  const rgb = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const out = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || element.closest("svg, .unseen, .skip") || element.getClientRects().length === 0) continue;
    const color = getComputedStyle(element).color, below = ground(element);
    const [a, b] = [luminance(rgb(color)), luminance(below)].sort((x, y) => y - x);
    out.push({ Text: text.slice(0, 60), Color: color, Ground: String(below), Ratio: (a + 0.05) / (b + 0.05) });
  }
  return out;
})();
