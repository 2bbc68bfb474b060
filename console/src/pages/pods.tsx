import { call, type Schemas } from '../api'
import { usd } from '../format'
import { useRows } from '../live'
import { setWord, word } from '../route'
import { attempt, Badge, Empty, Failure, Link, Page, Sure, Table, When, type Column } from '../ui'
import { useState } from 'preact/hooks'

export type Pod = Schemas['Pod']
type Action = Pod['actions'][number]

const labels: Record<Action, string> = { start: 'Start', stop: 'Stop', restart: 'Restart', terminate: 'Terminate' }

export const compute = (p: Pod): string => (p.gpu ? `${p.gpu.count} × ${p.gpu.id.replace(/^NVIDIA /, '')}` : p.cpu ? `${p.cpu.vcpuCount} vCPU ${p.cpu.id}` : '–')

/** The actions that a pod allows now. */
export function Actions({ of: p }: { of: Pod }) {
  const act = (action: Action) => void attempt(`${labels[action]}: ${p.name}`, () => call('post', '/v2/pods/{id}/action', { path: { id: p.id }, body: { action } }))
  return (
    <>
      {p.actions.filter((a) => a !== 'terminate').map((a) => a === 'start'
        ? <button key={a} type="button" onClick={() => act(a)}>{labels[a]}</button>
        : <Sure key={a} kind="" label={labels[a]} act={() => act(a)} ask={<p>The container of <b>{p.name}</b> ends. Its disk is emptied; volumes stay.</p>} />)}
      {p.actions.includes('terminate') && <Sure label="Terminate" act={() => act('terminate')} word={p.name} ask={<p>The pod ends and cannot be started again. What is on its disk and its persistent mount is removed.</p>} />}
    </>
  )
}

const columns: Column<Pod>[] = [
  { name: 'Name', narrow: true, sort: (p) => p.name, cell: (p) => <Link to={`/pods/${p.id}`} title={p.id}>{p.name}</Link> },
  { name: 'Status', narrow: true, sort: (p) => p.status, cell: (p) => <Badge of={p.statusReason === 'stopping' ? 'stopping' : p.status} /> },
  { name: 'Compute', sort: compute, cell: compute },
  { name: 'Image', sort: (p) => p.image, cell: (p) => <span title={p.image} class="mono">{p.image.replace(/^docker\.io\/(library\/)?/, '')}</span> },
  { name: 'Data center', sort: (p) => p.dataCenterId ?? '', cell: (p) => p.dataCenterId ?? '–' },
  { name: 'GPU', number: true, sort: (p) => p.runtime?.gpus[0]?.util ?? -1, cell: (p) => (p.runtime?.gpus.length ? `${Math.round(p.runtime.gpus.reduce((n, g) => n + g.util, 0) / p.runtime.gpus.length)} %` : '–') },
  { name: 'CPU', number: true, sort: (p) => p.runtime?.cpu.util ?? -1, cell: (p) => (p.runtime ? `${p.runtime.cpu.util} %` : '–') },
  { name: 'USD / h', number: true, sort: (p) => p.cost, cell: (p) => usd(p.cost) },
  { name: 'Created', sort: (p) => p.createdAt, cell: (p) => <When at={p.createdAt} /> },
]

const states = ['RUNNING', 'PROVISIONING', 'STARTING', 'EXITED', 'ERROR'] as const

export function Pods() {
  const [state, pick] = useState(word('status'))
  const pods = useRows<Pod>('/v2/pods', 'pods', { kind: 'pod', id: (p) => p.id, keep: (p) => p.status !== 'TERMINATED' })
  return (
    <Page wide title="Pods" actions={<Link to="/pods/new" class="button primary">New pod</Link>}>
      <Failure of={pods.error} />
      <Table label="pods" rows={state ? pods.rows.filter((p) => p.status === state) : pods.rows} columns={columns} id={(p) => p.id} loading={pods.loading}
        text={(p) => `${p.name} ${p.id} ${p.image} ${p.status} ${compute(p)} ${p.dataCenterId} ${p.hostId}`}
        filters={(
          <select aria-label="Status" value={state} onChange={(e) => {
            pick(e.currentTarget.value)
            setWord('status', e.currentTarget.value)
          }}><option value="">All</option>{states.map((s) => <option key={s}>{s}</option>)}</select>
        )}
        empty={<Empty title={state ? `No pod is ${state.toLowerCase()}.` : 'You have no pods yet. A pod is a container with CPUs or GPUs of its own.'} cli="gantry pod create web docker.io/library/nginx:alpine --cpu cpu3c --vcpu 2 --port 80/http --wait" />} />
    </Page>
  )
}
