// Static copies: unpacks data and builds elements from the viewer's own HTML. No markup reaches a parser of the browser:
// each element is made by name, and only names and attributes that the viewer uses are let through.
"use strict";

window.holdfast = (function () {
  const SVG = "http://www.w3.org/2000/svg";
  const REFUSED = new Set(["script", "style", "iframe", "object", "embed", "link", "meta", "base", "template", "frame"]);
  const VOID = new Set(["br", "hr", "img", "input", "wbr"]);
  const ADDRESSES = new Set(["href", "src", "action", "formaction"]);
  const TOKEN = /<(\/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z][a-zA-Z0-9-]*(?:="[^"]*")?)*)\s*>|([^<]+)/g;
  const ATTRIBUTE = /([a-zA-Z][a-zA-Z0-9-]*)(?:="([^"]*)")?/g;
  const ENTITIES = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };

  // The data files of a page, one after the other.
  async function unpack() {
    const found = [];
    for (const packed of window.holdfastData || []) {
      const bytes = Uint8Array.from(atob(packed), function (each) { return each.charCodeAt(0); });
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      found.push(JSON.parse(await new Response(stream).text()));
    }
    return found;
  }

  function plain(text) {
    return text.replace(/&(?:lt|gt|quot|#x27|amp);/g, function (each) { return ENTITIES[each]; });
  }

  function isOwn(address) {
    return /^(\.\.?\/|#|\?|data:image\/)/.test(address);
  }

  function make(name, attributes, above) {
    const inSvg = name === "svg" || above.namespaceURI === SVG;
    const element = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [, key, given] of attributes.matchAll(ATTRIBUTE)) {
      const value = plain(given || "");
      if (/^(on|style$|srcdoc$|xlink)/i.test(key) || ADDRESSES.has(key) && !isOwn(value)) continue;
      element.setAttribute(key, value);
    }
    return element;
  }

  // The elements of a text that the viewer has rendered.
  function build(text) {
    const top = document.createDocumentFragment();
    const open = [top];
    for (const [, end, name, attributes, content] of text.matchAll(TOKEN)) {
      const above = open[open.length - 1];
      if (content !== undefined) above.append(plain(content));
      else if (end) { if (open.length > 1) open.pop(); }
      else {
        const element = make(REFUSED.has(name.toLowerCase()) ? "span" : name, attributes, above);
        above.append(element);
        if (!VOID.has(name)) open.push(element);
      }
    }
    return top;
  }

  // What the address says behind "#".
  function asked() {
    return new URLSearchParams(location.hash.slice(1));
  }

  return { unpack: unpack, build: build, asked: asked };
})();
