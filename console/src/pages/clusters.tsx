import { useState } from 'preact/hooks'
import { call, type Schemas } from '../api'
import { usd } from '../format'
import { useLive, useRows } from '../live'
import { Asking, NounPage } from '../parts/noun'
import { attempt, Badge, Card, Cli, Dialog, Facts, Failure, Field, Link, Page, Sure, Table, When } from '../ui'
import { go } from '../route'

type Cluster = Schemas['InstantCluster']
type Pod = Schemas['Pod']

function New({ done }: { done(): void }) {
  const gpus = useLive<Schemas['GPUList']>('/v2/catalog/gpus?include=AVAILABILITY&product=CLUSTER', () => false)
  const offered = gpus.value?.gpus.filter((g) => g.availability !== 'NONE') ?? []
  return (
    <Asking act={async (read) => {
      await call('post', '/v2/clusters', {
        once: crypto.randomUUID(), body: {
          name: read('name'), type: read('type') as Cluster['type'], compute: { gpuTypeId: read('gpu'), gpuCountPerPod: Number(read('each')), podCount: Number(read('pods')) },
          ...(read('image') && { image: read('image') }), ...(read('args') && { args: read('args') }), onFailure: read('failure') as Cluster['onFailure'],
        },
      })
      done()
    }}>
      <Field label="Name"><input name="name" required autoFocus /></Field>
      <div class="columns">
        <Field label="Type"><select name="type"><option>APPLICATION</option><option>TRAINING</option><option>SLURM</option><option>RAY</option></select></Field>
        <Field label="GPU type" hint={gpus.value && offered.length === 0 ? 'Nothing is free now.' : undefined}><select name="gpu" required>{offered.map((g) => <option key={g.id} value={g.id}>{g.name}</option>)}</select></Field>
        <Field label="Pods"><input name="pods" type="number" min={2} defaultValue="2" required /></Field>
        <Field label="GPUs of each"><input name="each" type="number" min={1} defaultValue="8" required /></Field>
        <Field label="When a pod fails"><select name="failure"><option value="none">nothing</option><option value="restart">restart all</option><option value="stop">stop all</option></select></Field>
      </div>
      <Field label="Image"><input name="image" class="mono" placeholder="docker.io/me/train:1" /></Field>
      <Field label="Arguments"><input name="args" class="mono" placeholder="python train.py" /></Field>
    </Asking>
  )
}

export const Clusters = () => (
  <NounPage<Cluster> of={{
    title: 'Clusters', one: 'cluster', url: '/v2/clusters', field: 'clusters', kind: 'cluster', id: (c) => c.id, name: (c) => c.name, text: (c) => `${c.name} ${c.id} ${c.status}`,
    empty: ['You have no clusters. A cluster is pods on many hosts that work as one machine.', "gantry cluster create train --pods 2 --gpu H100 --count 8 --type TRAINING docker.io/me/train:1"],
    loses: 'All its pods end.', Form: New,
    columns: [
      { name: 'Name', narrow: true, sort: (c) => c.name, cell: (c) => <Link to={`/clusters/${c.id}`}>{c.name}</Link> },
      { name: 'Status', narrow: true, sort: (c) => c.status, cell: (c) => <Badge of={c.status} /> },
      { name: 'Type', cell: (c) => c.type.toLowerCase() },
      { name: 'Compute', cell: (c) => `${c.compute.podCount} pods × ${c.compute.gpuCountPerPod} × ${c.compute.gpuTypeId.replace(/^NVIDIA /, '')}` },
      { name: 'Data center', cell: (c) => c.dataCenterId },
      { name: 'USD / h', number: true, sort: (c) => c.cost, cell: (c) => usd(c.cost) },
      { name: 'Created', sort: (c) => c.createdAt, cell: (c) => <When at={c.createdAt} /> },
    ],
  }} />
)

function Rename({ of: c }: { of: Cluster }) {
  const [open, set] = useState(false)
  return <><button type="button" onClick={() => set(true)}>Rename</button>{open && <Dialog title="Rename the cluster" close={() => set(false)}><Asking label="Rename" act={async (read) => {
    await call('patch', '/v2/clusters/{id}', { path: { id: c.id }, body: { name: read('name') } })
    set(false)
  }}><Field label="Name"><input name="name" defaultValue={c.name} required /></Field></Asking></Dialog>}</>
}

export function ClusterPage({ args: [id] }: { args: string[] }) {
  const cluster = useLive<Cluster>(`/v2/clusters/${encodeURIComponent(id!)}`, (e) => e.kind === 'cluster' && e.id === id)
  const pods = useRows<Pod>(`/v2/clusters/${encodeURIComponent(id!)}/pods`, 'pods', { kind: 'pod', id: (p) => p.id, keep: (p) => p.cluster?.id === id && p.status !== 'TERMINATED' })
  const c = cluster.value
  if (!c) return <Page title="Cluster"><Failure of={cluster.error} /></Page>
  const path = { id: c.id }
  return (
    <Page title={c.name} actions={<><Badge of={c.status} /><Rename of={c} />
      <Sure kind="" label="Restart" ask={<p>The containers of all pods end and begin again.</p>} act={() => void attempt('The cluster restarts.', () => call('post', '/v2/clusters/{id}/restart', { path }))} />
      <Sure label="Delete" word={c.name} ask={<p>All its pods end.</p>} act={() => void attempt('The cluster was deleted.', async () => {
        await call('delete', '/v2/clusters/{id}', { path })
        go('/clusters')
      })} /></>}>
      <Card><Facts of={[['Type', c.type.toLowerCase()], ['Cost', `${usd(c.cost)} / h`], ['Data center', c.dataCenterId], ['Network', c.network.cidr], ['Restarts', c.restarts], ['When a pod fails', c.onFailure], ['SSH', c.primary.sshEndpoint], ['Created', <When key="c" at={c.createdAt} />]]} /></Card>
      {c.faults.length > 0 && <Card title="What failed"><table class="plain"><tbody>{c.faults.map((f) => <tr key={f.podId}><th scope="row">rank {f.rank}</th><td>{f.reason}{f.logTail && <pre>{f.logTail}</pre>}</td></tr>)}</tbody></table></Card>}
      <Failure of={pods.error} />
      <Table label="pods of the cluster" rows={[...pods.rows].sort((a, b) => (a.cluster?.rank ?? 0) - (b.cluster?.rank ?? 0))} loading={pods.loading} id={(p) => p.id} text={(p) => `${p.name} ${p.id}`} empty={<p class="dim">It has no pods.</p>} columns={[
        { name: 'Rank', narrow: true, number: true, sort: (p) => p.cluster?.rank ?? -1, cell: (p) => p.cluster?.rank ?? '–' },
        { name: 'Pod', narrow: true, cell: (p) => <Link to={`/pods/${p.id}`}>{p.name}</Link> }, { name: 'Status', narrow: true, cell: (p) => <Badge of={p.status} /> },
        { name: 'Role', cell: (p) => p.cluster?.role?.replace(/_/g, ' ').toLowerCase() ?? '–' }, { name: 'Address', cell: (p) => p.cluster?.ip ?? '–' }, { name: 'Host', cell: (p) => p.hostId ?? '–' },
        { name: 'GPU', number: true, cell: (p) => (p.runtime?.gpus.length ? `${Math.round(p.runtime.gpus.reduce((n, g) => n + g.util, 0) / p.runtime.gpus.length)} %` : '–') },
      ]} />
      <Cli line={`gantry cluster pods ${c.id}`} />
    </Page>
  )
}
