// Files that are chosen, dropped or pasted.

const by = (id) => document.getElementById(id);
const SUFFIXES = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/tiff": "tif", "image/bmp": "bmp", "image/avif": "avif" };

/** Blobs as files, named by their kind where they have no name of their own. */
export function filesOf(blobs, name = null) {
  return [...blobs].map((blob) => {
    const own = name ?? blob.name;
    if (own?.includes(".")) return new File([blob], own, { type: blob.type });
    return new File([blob], `${own || "pasted"}.${SUFFIXES[blob.type] ?? "png"}`, { type: blob.type });
  });
}

export function wireFiles(take, complain) {
  by("file").addEventListener("change", ({ target }) => {
    const files = [...target.files];
    target.value = "";
    if (files.length) take(files);
  });
  by("new").addEventListener("click", () => by("file").click());
  addEventListener("paste", (event) => {
    const files = filesOf(event.clipboardData.files);
    if (files.length) take(files);
    else complain("There is no picture in the clipboard.");
  });
  wirePasteButton(take, complain);
  wireDrop(take);
}

/** For those without a keyboard; browsers have it only where the page comes from this machine. */
function wirePasteButton(take, complain) {
  by("paste").hidden = !navigator.clipboard?.read;
  by("paste").addEventListener("click", async () => {
    try {
      const items = await navigator.clipboard.read();
      const pictures = items.filter((item) => item.types.some((type) => type in SUFFIXES));
      const blobs = await Promise.all(pictures.map((item) => item.getType(item.types.find((type) => type in SUFFIXES))));
      if (blobs.length) await take(filesOf(blobs));
      else complain("There is no picture in the clipboard.");
    } catch {
      complain("The browser does not let the page read the clipboard.");
    }
  });
}

function wireDrop(take) {
  let depth = 0; // of elements that a dragged file is over
  const dragged = (event, change) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    depth = change === null ? 0 : depth + change;
    by("dropping").hidden = depth <= 0;
  };
  addEventListener("dragenter", (event) => dragged(event, 1));
  addEventListener("dragleave", (event) => dragged(event, -1));
  addEventListener("dragover", (event) => dragged(event, 0));
  addEventListener("drop", (event) => {
    dragged(event, null);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length) take(files);
  });
}
