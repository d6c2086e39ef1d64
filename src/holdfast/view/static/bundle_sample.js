// A sample in a static copy: shows the one that the address names.
"use strict";

(async function () {
  const place = document.getElementById("bundle-sample");
  const [samples] = await holdfast.unpack();

  function show() {
    const key = holdfast.asked().get("key") || Object.keys(samples)[0];
    const found = Object.prototype.hasOwnProperty.call(samples, key) ? samples[key] : null;
    if (!found) {
      const sentence = document.createElement("p");
      sentence.className = "problem";
      sentence.textContent = "This file of the copy has no sample " + key;
      place.replaceChildren(sentence);
      return;
    }
    const [title, windows] = found;  // a window: the record number of its first step, and its text
    const wanted = (holdfast.asked().get("step") || "0").replace(/#.*/, "");
    const last = windows.filter(function (each) { return each[0] <= Number(wanted); }).pop();
    document.title = title + " · Holdfast";
    place.replaceChildren(holdfast.build((wanted === "last" ? windows[windows.length - 1] : last || windows[0])[1]));
    const step = document.getElementById("step-" + wanted);
    if (step) step.scrollIntoView();
    else window.scrollTo(0, 0);
  }

  window.addEventListener("hashchange", show);
  show();
})();
