
const state = { file: null, address: null, seed: 0, asking: null };
access.again = () => caption();

// ---- captions and variations -------------------------------------------------------------------------------------

async function caption() {
  if (!state.file) return;
  if (state.asking) state.asking.abort();
  const asking = state.asking = new AbortController();
  const slide = Number($("variety").value) / 100;
  const form = new FormData();
  form.append("photos", state.file, state.file.name || "photograph");
  form.append("n", $("count").value);
  form.append("seed", state.seed);
  form.append("variety", (0.1 + 0.8 * slide).toFixed(2));  // from --accurate to --diverse of the command
  form.append("temperature", (0.4 + 0.6 * slide).toFixed(2));
  say("Looking at the photograph …");
  $("captions").setAttribute("aria-busy", "true");
  try {
    const [result] = await ask("captions", { method: "POST", body: form, signal: asking.signal });
    show(result.captions);
  } catch (error) {
    if (error.name === "AbortError") return;
    show([]);
    say(error.message, true);
  }
  $("captions").setAttribute("aria-busy", "false");
}

async function vary(item, told, button, depth) {
  const panel = item.querySelector(".variations");
  const buttons = [...item.querySelector(".actions").querySelectorAll("[data-keep]")];
  const open = button.getAttribute("aria-expanded") === "true";
  for (const other of buttons) other.setAttribute("aria-expanded", "false");
  panel.hidden = open;
  if (open) return;
  button.setAttribute("aria-expanded", "true");
  panel.replaceChildren(line("Drawing …"));
  try {
    const asked = { id: told.id, keep: button.dataset.keep, n: 4, seed: depth };  // other draws at each depth
    const found = await post("variations", asked);
    const known = new Set(told.words.map(word => word.word));
    const list = document.createElement("ol");
    list.append(...found.captions.map(one => row(one, "Variation", depth + 1, known)));
    panel.replaceChildren(found.captions.length ? list : line("No other caption came of it."));
  } catch (error) {
    panel.replaceChildren(line(error.message));
  }
}

// ---- showing -----------------------------------------------------------------------------------------------------

function row(told, name, depth, known) {
  const item = $("caption").content.firstElementChild.cloneNode(true);
  fill(item, told, name, known);
  for (const button of item.querySelectorAll("[data-keep]")) {
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => vary(item, told, button, depth));
  }
  return item;
}

function show(captions) {
  const rows = captions.map((told, place) => row(told, "Caption " + (place + 1) + " of " + captions.length, 1));
  rows.forEach((item, place) => { item.style.animationDelay = place * 70 + "ms"; });
  $("captions").replaceChildren(...rows);
  hideBox();
  $("hint").hidden = $("again").hidden = !rows.length;
  if (!rows.length) return;
  $("image").alt = captions[0].text;
  say(rows.length === 1 ? "One caption for this photograph." : rows.length + " captions for this photograph.");
}

function fill(item, told, name, known) {
  const text = item.querySelector(".caption");
  const score = item.querySelector(".score");
  told.words.forEach((word, place) => {
    const span = document.createElement("span");
    span.className = "word" + (known && !known.has(word.word) ? " new" : "");
    span.textContent = word.word;
    span.told = word;
    text.append(place ? " " : "", span);
  });
  const number = told.log_probability.toFixed(1).replace("-", "−");
  text.setAttribute("aria-label", name + ": " + told.text + ". Right arrow: word by word.");
  score.textContent = number;
  score.title = "log-probability of the caption";
  score.setAttribute("aria-label", "log-probability " + number);
  item.querySelector("[data-copy]").addEventListener("click", event => copy(told.text, event.currentTarget));
}

function line(text) {
  const paragraph = document.createElement("p");
  paragraph.className = "soft";
  paragraph.textContent = text;
  return paragraph;
}

// ---- words and their regions -------------------------------------------------------------------------------------

function point(span, aloud) {
  hideBox();
  const { word, box: [left, top, right, bottom], weight } = span.told;
  const percent = side => side * 100 + "%";
  Object.assign($("box").style, { left: percent(left), top: percent(top), width: percent(right - left),
    height: percent(bottom - top) });
  $("box").hidden = false;
  span.classList.add("on");
  span.title = "attention " + weight.toFixed(2);
  if (!aloud) return;
  const share = Math.round((right - left) * (bottom - top) * 100);
  $("told").textContent = word + ": " + place((left + right) / 2, (top + bottom) / 2) + ", " + share +
    " percent of the photograph, attention " + Math.round(weight * 100) + " percent";
}

function place(x, y) {
  const row = y < 0.38 ? "top" : y > 0.62 ? "bottom" : "";
  const column = x < 0.38 ? "left" : x > 0.62 ? "right" : "";
  return [row, column].filter(Boolean).join(" ") || "centre";
}

function hideBox() {
  $("box").hidden = true;
  for (const span of document.querySelectorAll(".word.on")) span.classList.remove("on");
}

function step(event) {
  const text = event.target.closest && event.target.closest(".caption");
  if (!text) return;
  if (event.key === "Escape") return hideBox();
  const words = [...text.querySelectorAll(".word")];
  const now = words.findIndex(word => word.classList.contains("on"));
  const next = { ArrowRight: now + 1, ArrowLeft: now < 0 ? words.length - 1 : now - 1, Home: 0,
    End: words.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  point(words[Math.max(0, Math.min(next, words.length - 1))], true);
}

const list = $("captions");
// Only a mouse rests on a word. A finger taps it, and the region stays until the next tap.
const byMouse = react => event => { if (event.pointerType === "mouse") react(event); };
list.addEventListener("pointerover", byMouse(event => event.target.told ? point(event.target) : hideBox()));
list.addEventListener("pointerleave", byMouse(hideBox));
list.addEventListener("click", event => { if (event.target.told) point(event.target, true); });
list.addEventListener("keydown", step);
list.addEventListener("focusout", hideBox);

// ---- copying -----------------------------------------------------------------------------------------------------

async function copy(text, button) {
  const sentence = text[0].toUpperCase() + text.slice(1) + ".";
  let done = true;
  try {
    await navigator.clipboard.writeText(sentence);
  } catch (error) {
    done = copyBySelection(sentence);  // a page that did not come over https has no clipboard
  }
  button.label = button.label || [...button.childNodes];
  button.textContent = done ? "Copied" : "Cannot copy";
  $("told").textContent = done ? "Copied: " + sentence : "The browser does not let this page copy.";
  setTimeout(() => button.replaceChildren(...button.label), 1600);
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

// ---- choosing ----------------------------------------------------------------------------------------------------

function choose(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) return say("That is not a picture; give a photograph.", true);
  if (state.address) URL.revokeObjectURL(state.address);
  state.file = file;
  state.seed = 0;
  state.address = URL.createObjectURL(file);
  $("image").src = state.address;
  $("image").alt = "The photograph that you chose";
  $("about").hidden = true;
  showPhoto(true);
  show([]);
  caption();
}

function showPhoto(shown) {
  $("photo").hidden = !shown;
  $("invitation").hidden = shown;
  $("stage").classList.toggle("full", shown);
}

async function offerExamples() {
  const names = await fetch("examples").then(answer => answer.json()).catch(() => []);
  for (const name of names) {
    const button = document.createElement("button");
    const image = document.createElement("img");
    button.type = "button";
    image.src = "examples/" + name;
    image.alt = "Example: " + name.replace(/\..*/, "");
    button.append(image);
    button.addEventListener("click", async () => {
      const blob = await fetch(image.src).then(answer => answer.blob());
      choose(new File([blob], name, { type: blob.type }));
    });
    $("examples").append(button);
  }
  $("examples").hidden = !names.length;
}

$("image").addEventListener("load", event => {
  const { naturalWidth, naturalHeight } = event.target;
  $("photo").style.setProperty("--shape", naturalWidth / naturalHeight);
});
$("image").addEventListener("error", () => showPhoto(false));  // a format that only the server knows, or none
$("file").addEventListener("change", event => { choose(event.target.files[0]); event.target.value = ""; });
$("variety").addEventListener("change", caption);
$("variety").addEventListener("input", event => {
  const words = ["accurate", "rather accurate", "balanced", "rather diverse", "diverse"];
  event.target.setAttribute("aria-valuetext", words[Math.round(event.target.value / 25)]);
});
$("count").addEventListener("change", caption);
$("options").addEventListener("submit", event => event.preventDefault());
$("again").addEventListener("click", () => { state.seed += 1; caption(); });
document.addEventListener("paste", event => choose(event.clipboardData.files[0]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    event.preventDefault();
    document.body.classList.toggle("over", kind === "dragover");
    if (kind === "drop") choose(event.dataTransfer.files[0]);
  });
}
$("variety").dispatchEvent(new Event("input"));
offerExamples();
