
const MOST = 16;  // photographs at once
const state = { photos: [], at: 0, seed: 0, asking: null, note: "" };  // a photo: file, address, captions, error
access.again = () => askAll();

// ---- captions and variations -------------------------------------------------------------------------------------

async function askAll() {
  if (!state.photos.length) return;
  if (state.asking) state.asking.abort();
  const asking = state.asking = new AbortController();
  for (const photo of state.photos) photo.captions = photo.error = null;
  select(state.at);
  const order = [...state.photos.slice(state.at), ...state.photos.slice(0, state.at)];  // the one in view first
  for (const photo of order) {
    try {
      [{ captions: photo.captions }] = await ask("captions", { method: "POST", body: form(photo), signal: asking.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      photo.error = error.message;
    }
    if (photo === state.photos[state.at]) select(state.at);
  }
}

function form(photo) {
  const slide = Number($("variety").value) / 100;  // 0: --accurate of the command, 0.5: its defaults, 1: --diverse
  const fields = new FormData();
  fields.append("photos", photo.file, photo.file.name || "photograph");
  fields.append("n", $("count").value);
  fields.append("seed", state.seed);
  fields.append("variety", (0.1 + 0.8 * slide).toFixed(2));
  fields.append("latent_temperature", (0.5 + 0.3 * slide + 0.4 * Math.max(0, slide - 0.5)).toFixed(2));
  return fields;
}

async function vary(item, caption, button, depth) {
  const panel = item.querySelector(".variations");
  const buttons = [...item.querySelector(".actions").querySelectorAll("[data-keep]")];
  const open = button.getAttribute("aria-expanded") === "true";
  for (const other of buttons) other.setAttribute("aria-expanded", "false");
  panel.hidden = open;
  if (open) return;
  button.setAttribute("aria-expanded", "true");
  panel.replaceChildren(line("Drawing …"));
  try {
    const asked = { id: caption.id, keep: button.dataset.keep, n: 4, seed: depth };  // other draws at each depth
    const found = await post("variations", asked);
    const known = new Set(caption.words.map(word => word.word));
    const list = document.createElement("ol");
    list.append(...found.captions.map(one => row(one, "Variation", depth + 1, known)));
    panel.replaceChildren(found.captions.length ? list : line("No other caption came of it."));
  } catch (error) {
    panel.replaceChildren(line(error.message));
  }
}

// ---- showing -----------------------------------------------------------------------------------------------------

function row(caption, name, depth, known) {
  const item = $("caption").content.firstElementChild.cloneNode(true);
  fill(item, caption, name, known);
  for (const button of item.querySelectorAll("[data-keep]")) {
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => vary(item, caption, button, depth));
  }
  return item;
}

function show(captions) {
  const rows = captions.map((caption, place) => row(caption, "Caption " + (place + 1) + " of " + captions.length, 1));
  rows.forEach((item, place) => { item.style.animationDelay = place * 70 + "ms"; });
  $("captions").replaceChildren(...rows);
  hideBox();
  $("hint").hidden = $("again").hidden = !rows.length;
  if (!rows.length) return;
  $("image").alt = captions[0].text;
  say((rows.length === 1 ? "One caption" : rows.length + " captions") + " for " + (state.photos.length > 1 ?
    "photograph " + (state.at + 1) + " of " + state.photos.length : "this photograph") + "." + state.note);
}

function fill(item, caption, name, known) {
  const text = item.querySelector(".caption");
  const score = item.querySelector(".score");
  caption.words.forEach((word, place) => {
    const span = document.createElement("span");
    const doubt = word.support !== undefined && word.support !== null && word.support < 0.3;
    span.className = "word" + (known && !known.has(word.word) ? " new" : "") + (doubt ? " doubt" : "");
    span.textContent = word.word;
    span.word = word;
    text.append(place ? " " : "", span);
  });
  const number = caption.log_probability.toFixed(1).replace("-", "−");
  text.setAttribute("aria-label", name + ": " + caption.text + ". Right arrow: word by word.");
  const judged = caption.support !== undefined && caption.support !== null;
  const support = judged ? Math.round(caption.support * 100) + " %" : "";
  score.textContent = judged ? support : number;
  score.title = judged ? "how likely it is that this is true; log-probability " + number : "log-probability of the caption";
  score.setAttribute("aria-label", judged ? "support " + support : "log-probability " + number);
  item.querySelector("[data-copy]").addEventListener("click", event => copy(caption, event.currentTarget));
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
  const { word, box: [left, top, right, bottom], weight } = span.word;
  const percent = side => side * 100 + "%";
  Object.assign($("box").style, { left: percent(left), top: percent(top), width: percent(right - left),
    height: percent(bottom - top) });
  $("box").hidden = false;
  span.classList.add("on");
  span.title = "attention " + weight.toFixed(2) +
    (typeof span.word.support === "number" ? ", support " + span.word.support.toFixed(2) : "");
  if (!aloud) return;
  const share = Math.round((right - left) * (bottom - top) * 100);
  $("announcer").textContent = word + ": " + place((left + right) / 2, (top + bottom) / 2) + ", " + share +
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
list.addEventListener("pointerover", byMouse(event => event.target.word ? point(event.target) : hideBox()));
list.addEventListener("pointerleave", byMouse(hideBox));
list.addEventListener("click", event => { if (event.target.word) point(event.target, true); });
list.addEventListener("keydown", step);
list.addEventListener("focusout", hideBox);

// ---- copying -----------------------------------------------------------------------------------------------------

async function copy(caption, button) {
  const sentence = caption.alt || caption.text[0].toUpperCase() + caption.text.slice(1) + ".";
  let done = true;
  try {
    await navigator.clipboard.writeText(sentence);
  } catch (error) {
    done = copyBySelection(sentence);  // a page that did not come over https has no clipboard
  }
  button.label = button.label || [...button.childNodes];
  button.textContent = done ? "Copied" : "Cannot copy";
  $("announcer").textContent = done ? "Copied: " + sentence : "The browser does not let this page copy.";
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

function choose(files) {
  const given = [...files];
  if (!given.length) return;
  const pictures = given.filter(file => !file.type || file.type.startsWith("image/"));
  if (!pictures.length) return say("That is not a picture; give a photograph.", true);
  for (const photo of state.photos) URL.revokeObjectURL(photo.address);
  state.photos = pictures.slice(0, MOST).map(file => ({ file, address: URL.createObjectURL(file) }));
  state.at = state.seed = 0;
  state.note = given.length > state.photos.length ?
    " " + state.photos.length + " of the " + given.length + " files are taken: " +
    (pictures.length > MOST ? "the first " + MOST + " photographs." : "the others are not pictures.") : "";
  $("about").hidden = true;
  showStrip();
  askAll();
}

function showStrip() {
  const buttons = state.photos.map((photo, place) => {
    const button = document.createElement("button");
    const image = document.createElement("img");
    button.type = "button";
    image.src = photo.address;
    image.alt = "Photograph " + (place + 1) + ": " + photo.file.name;
    image.addEventListener("error", () => { button.textContent = String(place + 1); });  // a format that only the server knows
    button.append(image);
    button.addEventListener("click", () => select(place));
    return button;
  });
  $("strip").replaceChildren(...buttons);
  $("strip").hidden = buttons.length < 2;
}

function select(place) {
  state.at = place;
  const photo = state.photos[place];
  [...$("strip").children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === place)));
  if ($("image").src !== photo.address) {
    $("image").src = photo.address;
    showPhoto(true);
    show([]);
  }
  $("image").alt = "The photograph that you chose";
  const waiting = !photo.captions && !photo.error;
  $("captions").setAttribute("aria-busy", String(waiting));
  if (waiting) return say("Looking at the photograph …" + state.note);
  show(photo.captions || []);
  if (photo.error) say(photo.error, true);
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
      choose([new File([blob], name, { type: blob.type })]);
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
$("file").addEventListener("change", event => { choose(event.target.files); event.target.value = ""; });
$("variety").addEventListener("change", askAll);
$("variety").addEventListener("input", event => {
  const words = ["accurate", "rather accurate", "balanced", "rather diverse", "diverse"];
  event.target.setAttribute("aria-valuetext", words[Math.round(event.target.value / 25)]);
});
$("count").addEventListener("change", askAll);
$("options").addEventListener("submit", event => event.preventDefault());
$("again").addEventListener("click", () => { state.seed += 1; askAll(); });
document.addEventListener("paste", event => choose(event.clipboardData.files));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    event.preventDefault();
    document.body.classList.toggle("over", kind === "dragover");
    if (kind === "drop") choose(event.dataTransfer.files);
  });
}
$("variety").dispatchEvent(new Event("input"));
offerExamples();
