// Every call of runpod-sdk against an endpoint whose worker does what the input says. Prints what it got as JSON.
import runpodSdk from "runpod-sdk";

const { API, KEY, ENDPOINT } = process.env;
const endpoint = runpodSdk(KEY, { baseUrl: API }).endpoint(ENDPOINT);
const out = {};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function becomes(id, ...states) {
  for (const limit = Date.now() + 60_000; ;) {
    const got = await endpoint.status(id);
    if (states.includes(got.status)) return got;
    if (Date.now() > limit) throw new Error(`job ${id} is ${got.status}, not ${states}`);
    await pause(50); // the endpoint's limit on requests
  }
}

out.sync = await endpoint.runSync({ input: { do: "echo", n: [1, "zwei"] } });
out.run = await endpoint.run({ input: { do: "echo", empty: {} }, policy: { executionTimeout: 60000, ttl: 600000 } });
do {
  out.statusSync = await endpoint.statusSync(out.run.id, 20000);
} while (!out.statusSync.completed);
out.status = await endpoint.status(out.run.id);

const streamed = await endpoint.run({ input: { do: "stream" } });
out.chunks = [];
for await (const chunk of endpoint.stream(streamed.id)) out.chunks.push(chunk.output);
out.streamed = await endpoint.status(streamed.id);

out.failed = await endpoint.runSync({ input: { do: "error" } });

const long = await endpoint.run({ input: { do: "sleep", seconds: 600 } });
await becomes(long.id, "IN_PROGRESS");
const waiting = [];
for (let i = 0; i < 3; i++) waiting.push(await endpoint.run({ input: { do: "echo" } }));
out.health = await endpoint.health();
out.purged = await endpoint.purgeQueue();
out.purgedStatus = await endpoint.status(waiting[0].id);
out.cancel = await endpoint.cancel(long.id);
out.cancelled = await endpoint.status(long.id);
out.after = await endpoint.runSync({ input: { do: "echo", n: 2 } });

const refused = async (call) => call.then(() => "answered", (err) => err.response?.status ?? String(err));
out.noJob = await refused(endpoint.status("nothing"));
out.noKey = await refused(runpodSdk("gk_wrong", { baseUrl: API }).endpoint(ENDPOINT).run({ input: {} }));
out.noInput = await refused(endpoint.run({ wrong: 1 }));
console.log(JSON.stringify(out));
