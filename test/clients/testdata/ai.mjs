// The AI SDK's provider against the same endpoint.
import { createRunpod } from "@runpod/ai-sdk-provider";
import { generateText, streamText } from "ai";

const { API, KEY, ENDPOINT } = process.env;
const runpod = createRunpod({ apiKey: KEY, baseURL: `${API}/${ENDPOINT}/openai/v1` });
const out = {};
const whole = await generateText({ model: runpod("parrot"), prompt: "one two three", maxRetries: 0 });
out.whole = [whole.text, whole.finishReason, whole.usage.totalTokens];
const stream = streamText({ model: runpod("parrot"), prompt: "one two three", maxRetries: 0 });
out.streamed = [];
for await (const delta of stream.textStream) out.streamed.push(delta);
out.finish = await stream.finishReason;
out.noModel = await generateText({ model: runpod("none"), prompt: "x", maxRetries: 0 }).then(() => "answered", (err) => [err.name, err.statusCode]);
console.log(JSON.stringify(out));
