import { useEffect, useState } from 'preact/hooks'
import { address, ApiError, call, json, type Schemas } from '../api'
import { duration, moment, quote, usd } from '../format'
import { useLive, useOnce, useRows } from '../live'
import { Logs } from '../parts/logs'
import { Asking } from '../parts/noun'
import { go, setWord, word } from '../route'
import { attempt, Badge, Card, Cli, Copy, Dialog, Empty, Facts, Failure, Field, Link, Page, Stat, Sure, Table, Tabs, When } from '../ui'
import { variables } from './pod'

type Endpoint = Schemas['Endpoint']

/** A job, as api/v2 has it: the document of the API describes no jobs. */
interface Job {
  id: string
  status: string
  delayTime?: number
  executionTime?: number
  workerId?: string
  output?: unknown
  error?: string
  retries?: number
  reason?: string
  attempts?: number
  createdAt?: string
  input?: unknown
}

interface Health {
  jobs: { [state: string]: number }
  workers: { [state: string]: number }
}

const compute = (e: Endpoint) => (e.gpu ? `${e.gpu.count} × ${e.gpu.pools.join(' / ')}` : (e.cpu ?? []).map((c) => `${c.vcpuCount} vCPU ${c.id}`).join(', '))
const job = (id: string, rest: string) => `/v2/${encodeURIComponent(id)}/${rest}`
const pretty = (v: unknown) => (typeof v === 'string' ? v : JSON.stringify(v, null, 2))

export function Endpoints() {
  const list = useRows<Endpoint>('/v2/serverless', 'endpoints', { kind: 'endpoint', id: (e) => e.id })
  return (
    <Page wide title="Endpoints" actions={<Link to="/endpoints/new" class="button primary">New endpoint</Link>}>
      <Failure of={list.error} />
      <Table label="endpoints" rows={list.rows} loading={list.loading} id={(e) => e.id} text={(e) => `${e.name} ${e.id} ${e.image}`}
        empty={<Empty title="You have no endpoints. An endpoint starts workers when there is work, and ends them when there is none." cli="gantry endpoint create embed docker.io/me/embed:1 --gpu H100 --max-workers 5" />} columns={[
          { name: 'Name', narrow: true, sort: (e) => e.name, cell: (e) => <Link to={`/endpoints/${e.id}`} title={e.id}>{e.name}</Link> },
          { name: 'Type', narrow: true, sort: (e) => e.type, cell: (e) => e.type.replace('_', ' ').toLowerCase() },
          { name: 'Compute', cell: compute }, { name: 'Image', sort: (e) => e.image, cell: (e) => <code>{e.image}</code> },
          { name: 'Workers', number: true, cell: (e) => `${e.workers.min}–${e.workers.max}` }, { name: 'Release', number: true, cell: (e) => e.version },
          { name: 'Why', cell: (e) => e.reason ?? '' }, { name: 'Created', sort: (e) => e.createdAt, cell: (e) => <When at={e.createdAt} /> },
        ]} />
    </Page>
  )
}

export function NewEndpoint() {
  const gpus = useOnce<Schemas['GPUList']>('/v2/catalog/gpus?include=AVAILABILITY&product=SERVERLESS')
  const pools = [...new Set((gpus.value?.gpus ?? []).map((g) => g.pool).filter((p) => p !== null))]
  const [kind, pick] = useState('cpu')
  const [plan, set] = useState('')
  return (
    <Page title="New endpoint">
      <Card><Asking act={async (read) => {
        const body: Schemas['CreateEndpointRequest'] = {
          name: read('name'), type: read('type') as Endpoint['type'], workers: { min: Number(read('min')), max: Number(read('max')), idleTimeout: Number(read('idle')) },
          scaling: { type: 'QUEUE_DELAY', queueDelay: Number(read('delay')) }, env: variables(read('env')), ...(read('image') && { image: read('image') }), ...(word('template') && { templateId: word('template') }), ...(read('args') && { args: read('args') }),
          ...(read('models') && { modelReferences: read('models').split(/\s+/) }),
          ...(read('type') === 'LOAD_BALANCER' && { ports: [`${read('port') || 80}/http`] }),
          ...(kind === 'cpu' ? { cpu: [{ id: 'cpu3c', vcpuCount: Number(read('vcpus')) }] } : { gpu: { pools: [read('pool')], count: Number(read('count')) } }),
        }
        if (read('dry') === 'on') {
          await call('post', '/v2/serverless', { body, query: { dryRun: true } })
          return set('It would be created: nothing speaks against it.')
        }
        const made = await call('post', '/v2/serverless', { body, once: crypto.randomUUID() })
        go(`/endpoints/${made.id}`)
      }}>
        <div class="columns">
          <Field label="Name"><input name="name" required autoFocus /></Field>
          <Field label="Type" hint="A queue keeps jobs until a worker takes them; a load balancer passes requests on."><select name="type"><option>QUEUE</option><option>LOAD_BALANCER</option></select></Field>
          <Field label={word('template') ? 'Image (empty: the template’s)' : 'Image'}><input name="image" class="mono" required={!word('template')} placeholder="docker.io/me/worker:1" /></Field>
          <Field label="Arguments"><input name="args" class="mono" /></Field>
          <Field label="Models" hint="Addresses at huggingface.co, separated by blanks."><input name="models" class="mono" placeholder="https://huggingface.co/org/name" /></Field>
          <Field label="Compute"><select value={kind} onChange={(e) => pick(e.currentTarget.value)}><option value="cpu">CPU</option><option value="gpu">GPUs</option></select></Field>
          {kind === 'cpu' ? <Field label="vCPUs"><input name="vcpus" type="number" min={1} defaultValue="2" /></Field> : <>
            <Field label="GPU pool"><select name="pool">{pools.map((p) => <option key={p}>{p}</option>)}</select></Field><Field label="GPUs of a worker"><input name="count" type="number" min={1} defaultValue="1" /></Field></>}
          <Field label="Workers at least"><input name="min" type="number" min={0} defaultValue="0" /></Field>
          <Field label="Workers at most"><input name="max" type="number" min={0} defaultValue="3" /></Field>
          <Field label="Seconds without work" hint="Then a worker ends."><input name="idle" type="number" min={1} defaultValue="5" /></Field>
          <Field label="Seconds that a job waits" hint="Then another worker starts."><input name="delay" type="number" min={1} defaultValue="4" /></Field>
          <Field label="Port" hint="Of load balancers."><input name="port" type="number" defaultValue="80" /></Field>
        </div>
        <Field label="Environment" hint="One NAME=value a line."><textarea name="env" class="code" rows={3} /></Field>
        <label class="check"><input type="checkbox" name="dry" />Only see whether it could be created</label>
        {plan && <p class="note ok" role="status">{plan}</p>}
      </Asking></Card>
      <Cli line="gantry endpoint create embed docker.io/me/embed:1 --cpu cpu3c --vcpu 2 --max-workers 3" />
    </Page>
  )
}

/** The queue and the workers, as they are whenever one of them changed. */
function useHealth(e: Endpoint) {
  return useLive<Health>(job(e.id, 'health'), (x) => x.parentId === e.id || (x.kind === 'endpoint' && x.id === e.id))
}

function Summary({ of: e }: { of: Endpoint }) {
  const health = useHealth(e)
  const cost = useOnce<Schemas['ServerlessBilling']>(`/v2/billing/serverless?bucketSize=day&lastN=7&serverlessId=${e.id}`)
  const jobs = useOnce<{ requests: Job[] }>(e.type === 'QUEUE' ? job(e.id, 'requests?limit=500') : null)
  const sorted = (of: (j: Job) => number | undefined) => (jobs.value?.requests ?? []).map(of).filter((n) => n !== undefined).sort((a, b) => a - b)
  const at = (list: number[], p: number) => (list.length ? duration(list[Math.min(list.length - 1, Math.floor(list.length * p))]!) : '–')
  const waits = sorted((j) => j.delayTime)
  const runs = sorted((j) => j.executionTime)
  return (
    <>
      {e.reason && <p class="note">{e.reason}</p>}
      {e.rollout?.inProgress && <p class="note">Release {e.version} is being rolled out: {e.rollout.workersOnLatest} of {e.rollout.workersTotal} workers have it.</p>}
      <Failure of={health.error} />
      <div class="stats">
        {Object.entries(health.value?.jobs ?? {}).map(([k, n]) => <Stat key={k} name={`Jobs ${k.replace(/([A-Z])/g, ' $1').toLowerCase()}`} value={n} />)}
        {Object.entries(health.value?.workers ?? {}).map(([k, n]) => <Stat key={k} name={`Workers ${k}`} value={n} />)}
        {cost.value && <Stat name="Seven days" value={usd(cost.value.metadata.totals.totalAmount)} />}
      </div>
      {e.type === 'QUEUE' && <Card title="The newest 500 jobs">
        <table class="plain"><thead><tr><th /><th class="number" scope="col">half</th><th class="number" scope="col">95 %</th><th class="number" scope="col">99 %</th></tr></thead><tbody>
          <tr><th scope="row">waited at most</th>{[0.5, 0.95, 0.99].map((p) => <td key={p} class="number">{at(waits, p)}</td>)}</tr>
          <tr><th scope="row">ran at most</th>{[0.5, 0.95, 0.99].map((p) => <td key={p} class="number">{at(runs, p)}</td>)}</tr>
        </tbody></table>
      </Card>}
      <Card><Facts of={[
        ['Type', e.type.replace('_', ' ').toLowerCase()], ['Compute', compute(e)], ['Image', <code key="i">{e.image}</code>], ['Arguments', e.args && <code key="a">{e.args}</code>], ['Release', e.version],
        ['Workers', `${e.workers.min} to ${e.workers.max}`], ['Scaling', e.scaling.type === 'QUEUE_DELAY' ? `a job waits ${e.scaling.queueDelay} s` : `${e.scaling.requestCount} requests a worker`],
        ['Timeout', duration(e.timeout)], ['Flash boot', e.flashboot.toLowerCase()], ['Data centers', e.dataCenterIds.join(', ') || 'any'],
      ]} /></Card>
      <Cli line={`gantry endpoint get ${e.id}`} />
    </>
  )
}

function Workers({ of: e }: { of: Endpoint }) {
  const list = useLive<Schemas['WorkerList']>(`/v2/serverless/${e.id}/workers`, (x) => x.kind === 'worker' && x.parentId === e.id)
  const [log, show] = useState('')
  return (
    <>
      <Failure of={list.error} />
      <Table label="workers" rows={list.value?.workers ?? []} loading={!list.value && !list.error} id={(w) => w.id} text={(w) => `${w.id} ${w.status} ${w.reason}`} empty={<p class="empty">There are no workers now: none is needed, or none is allowed.</p>} columns={[
        { name: 'Worker', narrow: true, cell: (w) => <code>{w.id}</code> }, { name: 'Status', narrow: true, sort: (w) => w.status, cell: (w) => <><Badge of={w.status} /> {w.isFrozen && <Badge of="frozen" />}</> },
        { name: 'Why', cell: (w) => w.reason ?? '' }, { name: 'Release', number: true, cell: (w) => `${w.version}${w.isStale ? ' (old)' : ''}` }, { name: 'Data center', cell: (w) => w.dataCenterId ?? '–' },
        { name: 'Cold start', number: true, cell: (w) => (w.coldStart !== undefined ? duration(w.coldStart) : w.startedAt ? duration(Date.parse(w.startedAt) - Date.parse(w.createdAt)) : '–') },
        { name: 'Up', number: true, cell: (w) => (w.uptimeSeconds === null ? '–' : duration(w.uptimeSeconds * 1000)) }, { name: 'Log', narrow: true, cell: (w) => <button type="button" onClick={() => show(w.id)}>Log</button> },
      ]} />
      {log && <Card title={`Log of ${log}`}><Logs url={`/v2/serverless/${e.id}/workers/${log}/logs`} cli={`gantry endpoint logs ${e.id} ${log} -f`} /></Card>}
    </>
  )
}

/** Where the time of a job went, from its submission on. */
function Timeline({ of: v, from }: { of: Job; from?: string }) {
  if (v.delayTime === undefined) return null
  const begin = from ? Date.parse(from) : 0
  const total = v.delayTime + (v.executionTime ?? 0) || 1
  return (
    <div class="phases">
      {([['waited', 0, v.delayTime], ['ran', v.delayTime, v.executionTime ?? 0]] as const).flatMap(([name, at, ms]) => [
        <span key={name}>{name}{from && <span class="dim"> from {new Date(begin + at).toLocaleTimeString()}</span>}</span>,
        <span key={`${name}-track`} class="track"><i style={{ left: `${(at / total) * 100}%`, width: `${(ms / total) * 100}%` }} /></span>,
        <span key={`${name}-ms`} class="number">{duration(ms)}</span>,
      ])}
    </div>
  )
}

function JobDialog({ of: e, id, from, close }: { of: Endpoint; id: string; from?: string; close(): void }) {
  const [turn, again] = useState(0)
  const j = useLive<Job>(`${job(e.id, `status/${encodeURIComponent(id)}`)}?input=true#${turn}`, (x) => x.parentId === e.id)
  const v = j.value
  const open = v && ['IN_QUEUE', 'IN_PROGRESS'].includes(v.status)
  const act = (what: string, f: () => Promise<unknown>) => void attempt(what, () => f().then(() => again((n) => n + 1)))
  return (
    <Dialog title={`Job ${id}`} close={close}>
      <Failure of={j.error} />
      {v && <>
        <Facts of={[['Status', <Badge key="s" of={v.status} />], ['Submitted', from && moment(from)], ['Worker', v.workerId], ['Attempts', v.attempts], ['Why', v.reason]]} />
        <Timeline of={v} from={from} />
        {v.input !== undefined ? <><h2>Input</h2><pre>{pretty(v.input)}</pre></> : <p class="dim">The input of a job that has completed or was cancelled is not kept.</p>}
        {v.error && <><h2>Error</h2><pre>{v.error}</pre></>}
        {v.output !== undefined && <><h2>Output</h2><pre>{pretty(v.output)}</pre></>}
        <footer>{open && <button type="button" onClick={() => act('The job was cancelled.', () => json('POST', job(e.id, `cancel/${encodeURIComponent(id)}`)))}>Cancel the job</button>}
          {(v.status === 'FAILED' || v.status === 'TIMED_OUT') && <button type="button" onClick={() => act('The job waits again.', () => json('POST', job(e.id, `retry/${encodeURIComponent(id)}`)))}>Retry</button>}</footer>
      </>}
      <Cli line={`gantry job status ${e.id} ${quote(id)} --input`} />
    </Dialog>
  )
}

function Jobs({ of: e }: { of: Endpoint }) {
  const list = useLive<{ requests: Job[]; next?: string }>(job(e.id, 'requests?limit=500'), (x) => x.parentId === e.id)
  const [open, set] = useState(word('job'))
  const show = (id: string) => {
    set(id)
    setWord('job', id)
  }
  return (
    <>
      <Failure of={list.error} />
      <Table label="jobs" rows={list.value?.requests ?? []} loading={!list.value && !list.error} id={(j) => j.id} text={(j) => `${j.id} ${j.status} ${j.error} ${j.reason}`}
        filters={<><button type="button" onClick={list.reload}>Read again</button><Sure label="Purge the queue" ask={<p>Jobs that wait are removed.</p>} act={() => void attempt('The queue was purged.', () => json('POST', job(e.id, 'purge-queue')).then(list.reload))} /></>}
        empty={<Empty title="There are no jobs." cli={`gantry job run ${e.id} --input '{"text": "hello"}'`} />} columns={[
          { name: 'Job', narrow: true, cell: (j) => <button type="button" class="quiet mono" onClick={() => show(j.id)}>{j.id}</button> }, { name: 'Status', narrow: true, sort: (j) => j.status, cell: (j) => <Badge of={j.status} /> },
          { name: 'Why', cell: (j) => j.reason ?? j.error ?? '' }, { name: 'Waited', number: true, sort: (j) => j.delayTime ?? 0, cell: (j) => (j.delayTime === undefined ? '–' : duration(j.delayTime)) },
          { name: 'Ran', number: true, sort: (j) => j.executionTime ?? 0, cell: (j) => (j.executionTime === undefined ? '–' : duration(j.executionTime)) }, { name: 'Worker', cell: (j) => j.workerId ?? '–' }, { name: 'Submitted', cell: (j) => <When at={j.createdAt} /> },
        ]} />
      {open && <JobDialog key={open} of={e} id={open} from={list.value?.requests.find((j) => j.id === open)?.createdAt} close={() => show('')} />}
    </>
  )
}

/** The plain values of an example as fields, each of the kind that its value has; what is none of these stays JSON. */
function Inputs({ of: text, change }: { of: string; change(text: string): void }) {
  const [example] = useState<{ [name: string]: unknown }>(() => {
    const value = JSON.parse(text) as unknown
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as { [name: string]: unknown }) : {}
  })
  const [now, set] = useState(example)
  const put = (name: string, value: unknown) => {
    set({ ...now, [name]: value })
    change(JSON.stringify({ ...now, [name]: value }, null, 2))
  }
  return (
    <>
      {Object.keys(example).length === 0 && <p class="dim">The example is no object with names: it is written as JSON.</p>}
      {Object.entries(example).map(([name, was]) => (typeof was === 'boolean'
        ? <label key={name} class="check"><input type="checkbox" checked={now[name] as boolean} onChange={(ev) => put(name, ev.currentTarget.checked)} />{name}</label>
        : <Field key={name} label={name}>{typeof was === 'number'
          ? <input type="number" step="any" value={String(now[name])} onInput={(ev) => put(name, ev.currentTarget.valueAsNumber || 0)} />
          : typeof was === 'string' ? <textarea rows={Math.min(6, was.split('\n').length)} value={now[name] as string} onInput={(ev) => put(name, ev.currentTarget.value)} />
            : <textarea class="code" rows={3} defaultValue={JSON.stringify(was)} onChange={(ev) => {
              try {
                put(name, JSON.parse(ev.currentTarget.value))
                ev.currentTarget.setCustomValidity('')
              } catch {
                ev.currentTarget.setCustomValidity('This is no JSON.')
              }
            }} />}</Field>))}
    </>
  )
}

function Try({ of: e }: { of: Endpoint }) {
  const [input, set] = useState('{\n  "text": "hello"\n}')
  const [fields, split] = useState(false)
  const [answer, show] = useState<Job>()
  const [error, fail] = useState<Error>()
  const [busy, wait] = useState(false)
  let body: string | undefined
  try {
    body = JSON.stringify({ input: JSON.parse(input) })
  } catch { /* it is told below */ }
  return (
    <Card title="Submit a job and wait for its result" actions={<button type="button" disabled={!body} onClick={() => split(!fields)}>{fields ? 'As JSON' : 'As a form'}</button>}>
      <form onSubmit={async (ev) => {
        ev.preventDefault()
        wait(true)
        fail(undefined)
        try {
          show(await json<Job>('POST', job(e.id, 'runsync'), JSON.parse(body!)))
        } catch (x) {
          fail(x as Error)
        }
        wait(false)
      }}>
        {fields ? <Inputs of={input} change={set} /> : <Field label="Input, as JSON" hint={body ? undefined : <span class="bad">This is no JSON.</span>}><textarea class="code" rows={6} value={input} onInput={(ev) => set(ev.currentTarget.value)} spellcheck={false} /></Field>}
        <button type="submit" class="primary" disabled={busy || !body}>{busy ? 'It runs…' : 'Run'}</button>
      </form>
      <Failure of={error} />
      {answer && <><p role="status"><Badge of={answer.status} /> <code>{answer.id}</code> {answer.delayTime !== undefined && <>waited {duration(answer.delayTime)}, ran {duration(answer.executionTime ?? 0)}</>}</p><pre>{pretty(answer.output ?? answer.error ?? answer.reason ?? null)}</pre></>}
    </Card>
  )
}

/** The same call in the languages that people use. */
function Code({ of: e }: { of: Endpoint }) {
  const url = location.origin + job(e.id, e.type === 'QUEUE' ? 'runsync' : '')
  const code: Record<string, string> = {
    curl: `curl ${url} \\\n  -H "Authorization: Bearer $GANTRY_API_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '{"input": {"text": "hello"}}'`,
    Python: `import os, requests\n\nanswer = requests.post(\n    "${url}",\n    headers={"Authorization": "Bearer " + os.environ["GANTRY_API_KEY"]},\n    json={"input": {"text": "hello"}},\n    timeout=100,\n)\nanswer.raise_for_status()\nprint(answer.json())`,
    JavaScript: `const answer = await fetch("${url}", {\n  method: "POST",\n  headers: {\n    Authorization: \`Bearer \${process.env.GANTRY_API_KEY}\`,\n    "Content-Type": "application/json",\n  },\n  body: JSON.stringify({ input: { text: "hello" } }),\n});\nconsole.log(await answer.json());`,
    Go: `body := strings.NewReader(\`{"input": {"text": "hello"}}\`)\nreq, err := http.NewRequest(http.MethodPost, "${url}", body)\nif err != nil {\n\tlog.Fatal(err)\n}\nreq.Header.Set("Authorization", "Bearer "+os.Getenv("GANTRY_API_KEY"))\nreq.Header.Set("Content-Type", "application/json")\nresp, err := http.DefaultClient.Do(req)\nif err != nil {\n\tlog.Fatal(err)\n}\ndefer resp.Body.Close()\n_, err = io.Copy(os.Stdout, resp.Body)`,
  }
  return <>{Object.entries(code).map(([name, text]) => <Card key={name} title={name} actions={<Copy text={text} />}><pre>{text}</pre></Card>)}</>
}

function Releases({ of: e }: { of: Endpoint }) {
  const list = useLive<Schemas['ReleaseList']>(`/v2/serverless/${e.id}/releases`, (x) => x.kind === 'endpoint' && x.id === e.id)
  return (
    <>
      <Failure of={list.error} />
      {list.value?.releases.map((r) => (
        <Card key={r.id} title={`Release ${r.version}`} actions={<span class="dim"><When at={r.createdAt} />, {r.workerCount} workers</span>}>
          {r.diff.length === 0 ? <p class="dim">Nothing was changed.</p> : <table class="plain"><tbody>{r.diff.map((d) => <tr key={d.field}><th scope="row">{d.field}</th><td><del class="mono">{pretty(d.old) ?? '–'}</del></td><td class="mono">{pretty(d.new) ?? '–'}</td></tr>)}</tbody></table>}
        </Card>))}
      <Cli line={`gantry endpoint releases ${e.id}`} />
    </>
  )
}

function Settings({ of: e, close }: { of: Endpoint; close(): void }) {
  return (
    <Dialog title="Change the endpoint" close={close}>
      <Asking label="Change" act={async (read) => {
        await call('patch', '/v2/serverless/{id}', { path: { id: e.id }, body: {
          name: read('name'), ...(read('image') !== e.image && { image: read('image') }), workers: { min: Number(read('min')), max: Number(read('max')), idleTimeout: Number(read('idle')) },
        } })
        close()
      }}>
        <Field label="Name"><input name="name" defaultValue={e.name} required /></Field>
        <Field label="Image" hint="Another one is a new release: its workers take over as they come up."><input name="image" class="mono" defaultValue={e.image} required /></Field>
        <div class="columns">
          <Field label="Workers at least"><input name="min" type="number" min={0} defaultValue={String(e.workers.min)} /></Field><Field label="Workers at most"><input name="max" type="number" min={0} defaultValue={String(e.workers.max)} /></Field>
          <Field label="Seconds without work"><input name="idle" type="number" min={1} defaultValue={String(e.workers.idleTimeout ?? 5)} /></Field>
        </div>
      </Asking>
    </Dialog>
  )
}

export function EndpointPage({ args: [id] }: { args: string[] }) {
  const endpoint = useLive<Endpoint>(address('/v2/serverless/{id}', { id: id! }), (e) => e.kind === 'endpoint' && e.id === id)
  const [editing, edit] = useState(false)
  const e = endpoint.value
  useEffect(() => {
    if (endpoint.error instanceof ApiError && endpoint.error.status === 404 && e) go('/endpoints')
  }, [endpoint.error])
  if (!e) return <Page title="Endpoint"><Failure of={endpoint.error} /></Page>
  const queue = e.type === 'QUEUE'
  return (
    <Page title={e.name} actions={<><button type="button" onClick={() => edit(true)}>Change</button>
      <Sure label="Delete" word={e.name} ask={<p>Its workers end, and its jobs are gone.</p>} act={() => void attempt('The endpoint was deleted.', async () => {
        await call('delete', '/v2/serverless/{id}', { path: { id: e.id } })
        go('/endpoints')
      })} /></>}>
      <p class="dim"><code>{e.id}</code> <Copy text={e.id} /></p>
      {editing && <Settings of={e} close={() => edit(false)} />}
      <Tabs names={['Summary', 'Workers', ...(queue ? ['Jobs', 'Try it'] : []), 'Code', 'Releases']}>{(tab) => {
        switch (tab) {
          case 'Workers': return <Workers of={e} />
          case 'Jobs': return <Jobs of={e} />
          case 'Try it': return <Try of={e} />
          case 'Code': return <Code of={e} />
          case 'Releases': return <Releases of={e} />
          default: return <Summary of={e} />
        }
      }}</Tabs>
    </Page>
  )
}
