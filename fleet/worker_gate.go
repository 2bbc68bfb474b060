package fleet

// WorkerGate is where a serverless worker finds its host's agent, in its own network namespace: nothing else reaches it there.
const WorkerGate = "127.0.0.1:31271"
