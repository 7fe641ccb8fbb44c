
// All images of the classes: thumbnails, one image enlarged, and corrections, which can be downloaded.
{
  const { id, base, per_line, per_sheet, classes, images } = JSON.parse(document.getElementById("all-images").textContent);
  // A class is known by its key, its number or the name of a known class; it is called by its name.
  const keys = classes.map(({ key }) => key);
  const before = new Map(classes.map(({ key, name }) => [key, name]));
  const [viewer, bar, list] = [".viewer", ".corrections", "#class-names"].map((of) => document.querySelector(of));
  const target = viewer.querySelector("input");

  // Thumbnails. A sheet is decoded when one of its images comes near to the window.
  const sheets = document.querySelectorAll(".sheet");
  const addresses = [];
  const address = (sheet) => {
    const bytes = () => Uint8Array.from(atob(sheets[sheet].textContent.split(",")[1]), (byte) => byte.charCodeAt(0));
    return (addresses[sheet] ??= URL.createObjectURL(new Blob([bytes()], { type: "image/webp" })));
  };
  const paint = (element, number) => {
    const sheet = Math.floor(number / per_sheet);
    const place = number % per_sheet;
    const count = Math.min(per_sheet, images.path.length - sheet * per_sheet);
    const [columns, lines] = [Math.min(per_line, count), Math.ceil(count / per_line)];
    const part = (at, of) => (of > 1 ? (100 * at) / (of - 1) : 0);
    element.style.backgroundImage = `url(${address(sheet)})`;
    element.style.backgroundSize = `${100 * columns}% ${100 * lines}%`;
    element.style.backgroundPosition = `${part(place % per_line, columns)}% ${part(Math.floor(place / per_line), lines)}%`;
  };
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target: button } of entries) {
      if (!isIntersecting) continue;
      paint(button, button.dataset.image);
      near.unobserve(button);
    }
  }, { rootMargin: "400px" });
  const fill = (pictures, numbers) => {
    for (const number of numbers) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.image = number;
      label(button);
      button.addEventListener("click", () => enlarge(button));
      const item = document.createElement("li");
      item.append(button);
      pictures.append(item);
      near.observe(button);
    }
  };

  // Corrections: lines of corrections.csv, at most one for each image and one for each class.
  let lines = [];
  const key = `ctxgcd-corrections-${id}`;
  const classOf = (number) => keys[images.of[number]];
  const lineOf = (number) => lines.find(({ image }) => image === images.path[number]);
  const given = (own) => lines.find((line) => line.action === "name" && line.class === own)?.target ?? before.get(own) ?? own;
  const final = (own) => {
    const merged = lines.find((line) => line.action === "merge" && line.class === own);
    return merged ? final(merged.target) : own;
  };
  const shown = (own) => given(final(own));
  const existing = () => [...keys.filter((_, place) => !classes[place].merged), ...lines.flatMap(({ action, target }) => (action === "move" ? [target] : []))];
  // The class that a text names: an existing one, by its key or its name, or else a new one.
  const clean = (text) => text.trim().normalize("NFC");
  const meant = (text) => {
    const own = existing().find((own) => own === text) ?? existing().find((own) => given(own) === text);
    return own === undefined ? text : final(own);
  };
  const isMissing = (name) => /^new-\d+$/.test(name) && !existing().includes(name);

  const remove = (line) => { lines = lines.filter(({ image, class: of }) => image !== line.image || (!image && of !== line.class)); };
  const correct = (line, message) => {
    remove(line);
    lines.push(line);
    draw(message);
  };
  const rename = (own, text) => {
    const wanted = meant(text);
    const line = { image: "", class: own, target: wanted };
    if (text === shown(own)) return;
    if (!text || text === own || text === before.get(own)) {
      remove(line);
      if ((text || own) !== before.get(own)) lines.push({ action: "name", ...line, target: own });
      draw(shown(own) === own ? `${own} has no other name.` : `${own} is called ${shown(own)}.`);
    } else if (wanted === final(own)) {
      draw(`${own} and ${text} are one class already.`);
    } else if (isMissing(wanted)) {
      draw(`There is no class ${wanted}.`);
    } else if (existing().includes(wanted)) {
      correct({ action: "merge", ...line }, `${own} is merged into ${shown(wanted)}.`);
    } else {
      correct({ action: "name", ...line }, `${own} is called ${wanted}.`);
    }
  };

  // The images with a label are the last ones, and are not corrected here.
  const isLabelled = (number) => number >= images.confidence.length;
  const SIGNS = { confirm: "right", out: "thrown out" };
  const marked = (number) => {
    const line = lineOf(number);
    if (isLabelled(number)) return "labelled";
    if (!line && images.confidence[number] === null) return "labelled by hand";
    return line ? SIGNS[line.action] ?? `moved to ${shown(line.target)}` : "";
  };
  const label = (button) => {
    const number = button.dataset.image;
    const mark = marked(number);
    const text = [images.path[number], shown(classOf(number)), mark].filter(Boolean).join(", ");
    button.title = text;
    button.setAttribute("aria-label", text);
    button.toggleAttribute("data-labelled", mark.startsWith("labelled"));
    if (lineOf(number)) button.dataset.mark = lineOf(number).action;
    else delete button.dataset.mark;
  };

  // The whole page as the corrections have it.
  const draw = (message = "") => {
    for (const article of document.querySelectorAll("article[data-class]")) {
      const own = keys[article.dataset.class];
      const now = shown(own);
      const [heading, input] = [article.querySelector("h4"), article.querySelector("input")];
      heading.textContent = now === own ? own : final(own) === own ? `${now} (${own})` : `${own}: merged into ${now}`;
      if (input) input.value = now === own ? "" : now;
    }
    for (const button of document.querySelectorAll(".pictures button")) label(button);
    list.replaceChildren(...[...new Set(existing().map(shown))].map((name) => new Option(name)));
    bar.hidden = lines.length === 0 && !message;
    for (const button of bar.querySelectorAll("button")) button.disabled = lines.length === 0;
    const count = `${lines.length} correction${lines.length === 1 ? "" : "s"}.`;
    bar.querySelector("p").textContent = [message, count].filter(Boolean).join(" ");
    stored = keep();
  };

  // They stay in this browser until the page is made again, where a browser allows this to files.
  let stored = true;
  const keep = () => {
    try {
      if (lines.length) localStorage.setItem(key, JSON.stringify(lines));
      else localStorage.removeItem(key);
      return true;
    } catch {
      return false;
    }
  };
  const kept = () => {
    try {
      return JSON.parse(localStorage.getItem(key)) ?? [];
    } catch {
      return [];
    }
  };
  addEventListener("beforeunload", (event) => { if (!stored && lines.length) event.preventDefault(); });

  const download = () => {
    const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    // Lines of images first: they name classes as they are before these are merged.
    const ordered = [...lines.filter(({ image }) => image), ...lines.filter(({ image }) => !image)];
    const rows = ordered.map(({ action, image, class: of, target }) => [action, image, of, action === "name" ? target : target && final(target)]);
    const text = [["action", "image", "class", "target"], ...rows].map((row) => `${row.map(cell).join(",")}\n`).join("");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "corrections.csv";
    link.click();
    draw("Now run: ctxgcd label OUT corrections.csv, where OUT is the folder of this page and corrections.csv is the downloaded file.");
  };

  // One image enlarged, among those beside which it was clicked.
  let among = [];
  let at = 0;
  const enlarge = (button) => {
    among = [...(button.closest(".image-list") ?? button.closest(".pictures")).querySelectorAll("button")];
    look(among.indexOf(button));
    viewer.showModal();
    viewer.querySelector("[data-do=next]").focus();
  };
  const look = (place) => {
    at = Math.max(0, Math.min(among.length - 1, place));
    const number = among[at].dataset.image;
    const [stage, image, link] = [".stage", "img", "a"].map((of) => viewer.querySelector(of));
    const source = base + images.path[number].split("/").map(encodeURIComponent).join("/");
    paint(stage, number);
    image.hidden = true;
    viewer.querySelector(".lost").hidden = true;
    image.src = source;
    link.href = source;
    viewer.querySelector("#viewer-path").textContent = images.path[number];
    viewer.querySelector(".correcting").hidden = isLabelled(number);
    viewer.querySelector(".given").hidden = !isLabelled(number);
    const own = shown(classOf(number));
    const share = images.confidence[number] ?? null;
    const sure = share === null ? own : `${own} (${share}%), or ${shown(keys[images.second[number]])}`;
    viewer.querySelector(".facts").replaceChildren(...[sure, `${at + 1} of ${among.length}`, marked(number)].filter(Boolean).map((text) => {
      const span = document.createElement("span");
      span.textContent = text;
      return span;
    }));
  };
  viewer.querySelector("img").addEventListener("load", ({ target: image }) => { image.hidden = false; });
  viewer.querySelector("img").addEventListener("error", () => { viewer.querySelector(".lost").hidden = false; });
  viewer.addEventListener("close", () => among[at].focus());

  const mark = (action) => {
    const number = among[at].dataset.image;
    if (isLabelled(number)) return;
    const line = { action, image: images.path[number], class: "", target: "" };
    if (action === "confirm") line.class = classOf(number);
    if (action === "move") {
      line.target = meant(clean(target.value));
      if (!line.target || isMissing(line.target)) return target.focus();
      if (line.target === final(classOf(number))) line.action = "confirm", line.class = classOf(number), line.target = "";
    }
    correct(line);
    look(at + 1);
  };
  const actions = {
    confirm: () => mark("confirm"),
    out: () => mark("out"),
    move: () => mark("move"),
    clear: () => {
      remove({ image: images.path[among[at].dataset.image] });
      draw();
      look(at);
    },
    previous: () => look(at - 1),
    next: () => look(at + 1),
    close: () => viewer.close(),
    undo: () => {
      lines.pop();
      draw("The last correction is taken back.");
    },
    download,
  };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", actions[button.dataset.do]);
  const KEYS = { c: "confirm", x: "out", u: "clear", ArrowLeft: "previous", ArrowRight: "next" };
  viewer.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === target;
    const action = typing ? (event.key === "Enter" ? "move" : undefined) : KEYS[event.key];
    if (!typing && event.key === "m") {
      target.select();
    } else if (action) {
      actions[action]();
      if (typing) viewer.querySelector("[data-do=next]").focus();
    } else {
      return;
    }
    event.preventDefault();
  });

  for (const button of document.querySelectorAll("[data-merge]")) {
    const [from, to] = button.dataset.merge.split(" ").map((place) => keys[place]);
    button.addEventListener("click", () => rename(from, shown(to)));
  }
  for (const input of document.querySelectorAll(".naming input")) {
    input.addEventListener("change", () => rename(keys[input.closest("article").dataset.class], clean(input.value)));
  }

  for (const pictures of document.querySelectorAll("[data-images]")) fill(pictures, pictures.dataset.images.split(" "));
  for (const details of document.querySelectorAll(".every")) {
    const pictures = details.querySelector(".pictures");
    const { from, to } = pictures.dataset;
    const numbers = Array.from({ length: to - from }, (_, place) => Number(from) + place);
    details.addEventListener("toggle", () => fill(pictures, numbers), { once: true });
  }
  lines = kept();
  draw();
}
