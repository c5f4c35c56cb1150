// The server's API; errors carry the server's own one line.

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is nlrn web still running?");
  }
  const facts = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(facts.error ?? `The server answered ${answer.status}.`);
  return facts;
}

const post = (path, facts, signal) =>
  ask(path, {
    method: "POST", signal, body: JSON.stringify(facts), headers: { "content-type": "application/json" },
  });

export const catalog = () => ask("api/models");

export const upload = (file) =>
  ask(`api/pictures?name=${encodeURIComponent(file.name)}`, {
    method: "POST", body: file, headers: { "content-type": "application/octet-stream" },
  });

export const facts = (picture, noise) => ask(`api/pictures/${picture}?noise=${noise}`);
export const previewOfUpload = (picture, noise) => `api/pictures/${picture}/preview?noise=${noise}`;
export const previewOfJob = (job) => `api/jobs/${job}/preview`;
export const resultOfJob = (job, strength, format) => `api/jobs/${job}/result?strength=${strength}&format=${format}`;
export const scoresOfJob = (job, strength) => ask(`api/jobs/${job}/scores?strength=${strength}`);
export const forget = (picture) => ask(`api/pictures/${picture}`, { method: "DELETE", keepalive: true });

export const startRestoration = (request) => post("api/jobs", request);
export const estimate = (request, signal) => post("api/estimates", request, signal);
export const startTrace = (request) => post("api/traces", request);
export const maps = (request, signal) => post("api/maps", request, signal);
export const cancel = (job) => ask(`api/jobs/${job}`, { method: "DELETE", keepalive: true });

/** Calls onChange with the facts of a job until it is finished; gives the last ones. */
export function follow(job, onChange) {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`api/jobs/${job}/events`);
    events.onmessage = ({ data }) => {
      const facts = JSON.parse(data);
      onChange(facts);
      if (["done", "failed", "cancelled"].includes(facts.state)) {
        events.close();
        resolve(facts);
      }
    };
    events.onerror = () => {
      events.close();
      reject(new Error("The connection to the server was lost."));
    };
  });
}

export async function loadImage(address) {
  const image = new Image();
  image.src = address;
  try {
    await image.decode();
  } catch {
    throw new Error("The picture could not be shown.");
  }
  return image;
}
