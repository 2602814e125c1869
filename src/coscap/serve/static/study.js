
const SCALES = ["accuracy", "diversity"];
const desk = { annotator: "", items: 0, rated: 0, next: null, place: 0, address: null, saving: Promise.resolve() };

// ---- coming and going --------------------------------------------------------------------------------------------

async function join() {
  access.again = join;
  try {
    const progress = await post("annotators", { annotator: $("annotator").value });
    Object.assign(desk, progress);
    remembered(localStorage, "annotator", desk.annotator);
    say("");
    await go(desk.next);
  } catch (error) {
    say(error.message, true);
  }
}

async function go(place) {
  access.again = () => go(place);
  try {
    await desk.saving;
    if (place === null || place >= desk.items) return finish();
    const item = await ask("items/" + place + "?annotator=" + encodeURIComponent(desk.annotator));
    const picture = await reach(item.picture).then(answer => answer.blob());
    show(item, picture);
    say("");
  } catch (error) {
    say(error.message, true);
  }
}

function open(part) {
  for (const id of ["begin", "item", "end"]) $(id).hidden = id !== part;
  document.body.classList.toggle("rating", part === "item");
}

function finish() {
  open("end");
  count();
  const left = desk.items - desk.rated;
  $("thanks").textContent = left ? left + " still to rate." : "That was all. Thank you!";
  $("thanks").focus();
}

// ---- showing an item ---------------------------------------------------------------------------------------------

function show(item, picture) {
  desk.place = item.place;
  if (desk.address) URL.revokeObjectURL(desk.address);
  $("picture").src = desk.address = URL.createObjectURL(picture);
  $("captions").replaceChildren(...item.captions.map(text => {
    const row = document.createElement("li");
    row.textContent = text;
    return row;
  }));
  for (const scale of SCALES) {
    for (const input of inputs(scale)) input.checked = Number(input.value) === item[scale];
  }
  $("place").textContent = "Photograph " + (item.place + 1) + " of " + desk.items;
  $("back").disabled = item.place === 0;
  open("item");
  ready();
  count();
  scrollTo(0, 0);
  $("place").focus({ preventScroll: true });
}

function count() {
  $("progress").hidden = false;
  $("meter").max = desk.items;
  $("meter").value = desk.rated;
  $("count").textContent = desk.rated + " of " + desk.items + " rated";
  $("who").textContent = "as " + desk.annotator;
}

function ready() {
  $("next").disabled = SCALES.some(scale => !value(scale));
}

// ---- rating ------------------------------------------------------------------------------------------------------

const inputs = scale => [...$(scale).querySelectorAll("input")];
const value = scale => Number((inputs(scale).find(input => input.checked) || {}).value || 0);

function save() {
  ready();
  if ($("next").disabled) return;
  const rating = { annotator: desk.annotator, place: desk.place, accuracy: value("accuracy"), diversity: value("diversity") };
  // One after the other, so that the last choice is the one that stays.
  desk.saving = desk.saving.then(() => post("ratings", rating)).then(progress => {
    Object.assign(desk, progress);
    count();
    say("");
  }).catch(error => {
    access.again = save;
    say("Not saved: " + error.message, true);
  });
}

async function next() {
  if ($("next").disabled) return;
  await desk.saving;
  if ($("status").classList.contains("bad")) return save();  // what is not saved is not left behind
  await go(desk.place + 1 < desk.items ? desk.place + 1 : desk.next);
}

function press(event) {
  if ($("item").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Backspace") {
    event.preventDefault();
    if (desk.place > 0) go(desk.place - 1);
  } else if (/^[0-9]$/.test(event.key)) {
    event.preventDefault();
    const held = document.activeElement.closest("fieldset");
    const scale = held ? held.id : value("accuracy") && !value("diversity") ? "diversity" : "accuracy";
    const input = inputs(scale)[(Number(event.key) + 9) % 10];
    input.checked = true;
    save();
    const after = scale === "accuracy" ? inputs("diversity").find(one => one.checked) || inputs("diversity")[0] : $("next");
    (after.disabled ? input : after).focus();
  } else if (event.key === "Enter" && document.activeElement.tagName !== "BUTTON") {
    event.preventDefault();
    next();
  }
}

for (const scale of SCALES) {
  for (let step = 1; step <= 10; step += 1) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: scale, value: step });
    label.append(input, String(step));
    $(scale).querySelector(".steps").append(label);
  }
  $(scale).addEventListener("change", save);
}
$("join").addEventListener("submit", event => { event.preventDefault(); join(); });
$("rate").addEventListener("submit", event => { event.preventDefault(); next(); });
$("back").addEventListener("click", () => go(desk.place - 1));
$("look").addEventListener("click", () => go(desk.next === null ? desk.items - 1 : desk.next));
document.addEventListener("keydown", press);
$("annotator").value = remembered(localStorage, "annotator");
