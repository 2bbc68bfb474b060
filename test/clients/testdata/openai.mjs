// The client of OpenAI's API against an endpoint whose worker answers as one of a language model does.
import OpenAI from "openai";

const { API, KEY, ENDPOINT, BASE } = process.env;
const client = new OpenAI({ apiKey: KEY, baseURL: BASE ?? `${API}/${ENDPOINT}/openai/v1`, maxRetries: 0 });
const ask = { model: "parrot", messages: [{ role: "user", content: "one two three" }] };
const out = {};

out.models = (await client.models.list()).data.map((m) => m.id);
out.whole = (await client.chat.completions.create(ask)).choices[0].message.content;
out.streamed = [];
for await (const event of await client.chat.completions.create({ ...ask, stream: true })) {
  out.streamed.push(event.choices[0].delta.content ?? event.choices[0].finish_reason);
}
const refused = (c, q) => c.chat.completions.create(q).then(() => "answered", (err) => [err.constructor.name, err.status]);
out.noModel = await refused(client, { ...ask, model: "none" });
out.noKey = await refused(new OpenAI({ apiKey: "gk_wrong", baseURL: client.baseURL, maxRetries: 0 }), ask);
console.log(JSON.stringify(out));
