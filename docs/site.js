// On a phone, folds the sections of a page that is longer than ten screens, and the parts of a section that is longer
// than six. A heading opens and closes its section; a link to a place in a section opens it.
(() => {
  const screens = (height) => height / innerHeight;
  if (!matchMedia("(max-width: 44em)").matches || screens(document.documentElement.scrollHeight) <= 10) return;

  function fold(section, isFolded) {
    section.classList.toggle("folded", isFolded);
    section.querySelector("button.fold").setAttribute("aria-expanded", String(!isFolded));
  }

  function foldAll(inside, level) {
    for (const heading of inside.querySelectorAll(`:scope > h${level}[id]`)) {
      const section = document.createElement("section");
      heading.before(section);
      let next = heading;
      do {
        const moved = next;
        next = next.nextElementSibling;
        section.append(moved);
      } while (next && !(/^H[1-6]$/.test(next.tagName) && next.tagName <= heading.tagName));
      if (level === 2 && screens(section.offsetHeight) > 6) foldAll(section, 3);
      const button = document.createElement("button");
      button.className = "fold";
      button.setAttribute("aria-label", heading.firstChild.textContent);
      heading.prepend(button);
      heading.addEventListener("click", () => fold(section, !section.classList.contains("folded")));
      fold(section, true);
    }
  }

  function open() {
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = place?.closest(".folded"); at; at = at.parentElement.closest(".folded")) fold(at, false);
    place?.scrollIntoView();
  }

  foldAll(document.querySelector("article"), 2);
  addEventListener("hashchange", open);
  open();
})();
