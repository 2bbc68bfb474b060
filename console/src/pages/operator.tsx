import { useState } from 'preact/hooks'
import { call, json, type Schemas } from '../api'
import { usd } from '../format'
import { ofFleet, useOnce, useRows } from '../live'
import { Asking, Once } from '../parts/noun'
import { attempt, Badge, Card, Cli, Dialog, Empty, Facts, Failure, Field, Link, Page, Sure, Table, Tabs, When } from '../ui'

type Account = Schemas['OperatorAccount']

export function Accounts() {
  const list = useRows<Account>('/admin/v1/accounts', 'accounts', { kind: 'account', id: (a) => a.id, stream: ofFleet })
  const [making, make] = useState(false)
  return (
    <Page wide title="Accounts" actions={<button type="button" class="primary" onClick={() => make(true)}>New account</button>}>
      <Failure of={list.error} />
      <Table label="accounts" rows={list.rows} loading={list.loading} id={(a) => a.id} text={(a) => `${a.name} ${a.id}`} empty={<Empty title="There are no accounts." cli="gantry account create acme" />} columns={[
        { name: 'Name', narrow: true, sort: (a) => a.name, cell: (a) => <Link to={`/accounts/${a.id}`}>{a.name}</Link> }, { name: 'Id', cell: (a) => <code>{a.id}</code> },
        { name: 'State', narrow: true, cell: (a) => <Badge of={a.suspended ? 'suspended' : 'open'} /> }, { name: 'Balance', number: true, narrow: true, sort: (a) => a.balance, cell: (a) => usd(a.balance) }, { name: 'USD / h', number: true, sort: (a) => a.hourlyRate, cell: (a) => usd(a.hourlyRate) },
        { name: 'Pays', cell: (a) => (a.prepaid ? 'prepaid' : 'metered') }, { name: 'Pods', number: true, sort: (a) => a.limits.pods.used, cell: (a) => a.limits.pods.used }, { name: 'GPUs', number: true, sort: (a) => a.limits.gpus.used, cell: (a) => a.limits.gpus.used }, { name: 'Created', sort: (a) => a.createdAt, cell: (a) => <When at={a.createdAt} /> },
      ]} />
      {making && <Dialog title="New account" close={() => make(false)}><Asking act={async (read) => {
        await call('post', '/admin/v1/accounts', { body: { name: read('name') } })
        make(false)
        list.reload()
      }}><Field label="Name"><input name="name" required autoFocus /></Field></Asking></Dialog>}
    </Page>
  )
}

export function AccountPage({ args: [id] }: { args: string[] }) {
  const account = useOnce<Account>(`/admin/v1/accounts/${encodeURIComponent(id!)}`)
  const [key, show] = useState('')
  const a = account.value
  if (!a) return <Page title="Account"><Failure of={account.error} /></Page>
  const path = { id: a.id }
  const act = (what: string, f: () => Promise<unknown>) => void attempt(what, () => f().then(account.reload))
  return (
    <Page title={a.name} actions={<><Badge of={a.suspended ? 'suspended' : 'open'} />
      {a.suspended ? <button type="button" onClick={() => act('The account may work again.', () => call('post', '/admin/v1/accounts/{id}/resume', { path }))}>Resume</button>
        : <Sure label="Suspend" word={a.name} ask={<p>Its keys may change nothing any more. Its pods run on.</p>} act={() => act('The account was suspended.', () => call('post', '/admin/v1/accounts/{id}/suspend', { path, body: { reason: 'from the console' } }))} />}</>}>
      {a.suspended && <p class="note bad">{a.suspended.reason} <When at={a.suspended.at} /></p>}
      <Card><Facts of={[['Id', <code key="i">{a.id}</code>], ['Balance', usd(a.balance)], ['Now', `${usd(a.hourlyRate)} / h`], ['Pays', a.prepaid ? 'prepaid' : 'metered'], ['Egress', String(a.egress)], ['Spend limit', a.spendLimit === null ? 'none' : usd(a.spendLimit)], ['Created', <When key="c" at={a.createdAt} />]]} /></Card>
      <div class="grid">
        <Card title="Credit"><Asking label="Add" act={async (read) => {
          await call('post', '/admin/v1/accounts/{id}/credits', { path, body: { amount: Number(read('amount')) }, once: crypto.randomUUID() })
          account.reload()
        }}><Field label="USD" hint="A negative amount takes away."><input name="amount" type="number" step="0.01" required /></Field></Asking></Card>
        <Card title="Key"><Asking label="Make a key" act={async (read) => {
          const made = await call('post', '/admin/v1/accounts/{id}/keys', { path, body: { name: read('name'), preset: read('preset') as 'all' } })
          show(made.apiKey)
        }}><Field label="Name"><input name="name" required /></Field><Field label="May do"><select name="preset"><option value="all">Everything in this account</option><option value="readOnly">Read alone</option></select></Field></Asking></Card>
      </div>
      <Card title="Limits"><Asking label="Save" act={async (read) => {
        const limits = Object.fromEntries(Object.entries(a.limits).filter(([k, l]) => Number(read(k)) !== l.limit).map(([k]) => [k, Number(read(k))]))
        await json('PATCH', `/admin/v1/accounts/${encodeURIComponent(a.id)}`, { limits })
        account.reload()
      }}><div class="columns">{Object.entries(a.limits).map(([k, l]) => <Field key={`${k}${l.limit}`} label={k.replace(/([A-Z]+)/g, ' $1').toLowerCase()} hint={`${Number(l.used.toFixed(2))} used`}><input name={k} type="number" min={0} defaultValue={String(l.limit)} /></Field>)}</div></Asking></Card>
      {key && <Dialog title="New key" close={() => show('')}><Once what="The key" text={key} /></Dialog>}
      <Cli line={`gantry account get ${a.id}`} />
    </Page>
  )
}

type GPU = Schemas['GPUTypeEntry']

function GPUPrice({ of: g, done }: { of: GPU; done(): void }) {
  const [open, set] = useState(false)
  return (
    <>
      <button type="button" onClick={() => set(true)}>Change</button>
      {open && <Dialog title={g.name} close={() => set(false)}><Asking label="Save" act={async (read) => {
        const spot = (name: string) => (read(name) ? { [name]: Number(read(name)) } : {})
        await call('put', '/admin/v1/gpu-types/{id}', { path: { id: g.id }, body: {
          name: g.name, manufacturer: g.manufacturer, memory: g.memory, ...(g.pool && { pool: g.pool }),
          price: { secure: Number(read('secure')), community: Number(read('community')), serverless: Number(read('serverless')), ...spot('secureSpot'), ...spot('communitySpot') },
        } })
        set(false)
        done()
      }}>
        <p class="dim">USD per GPU and hour, from now on. What was charged stays.</p>
        <div class="columns">{(['secure', 'community', 'serverless', 'secureSpot', 'communitySpot'] as const).map((k) => <Field key={k} label={k.replace(/([A-Z])/g, ', least bid').toLowerCase()}><input name={k} type="number" step="0.001" min={0} defaultValue={g.price[k]?.toString() ?? ''} required={!k.endsWith('Spot')} /></Field>)}</div>
      </Asking></Dialog>}
    </>
  )
}

function GPUPrices() {
  const list = useOnce<Schemas['GPUTypeEntryList']>('/admin/v1/gpu-types')
  return <><Failure of={list.error} /><Table label="GPU types" rows={list.value?.gpuTypes ?? []} loading={!list.value && !list.error} id={(g) => g.id} text={(g) => g.id} empty={<p class="empty">No GPU types.</p>} columns={[
    { name: 'Type', narrow: true, sort: (g) => g.id, cell: (g) => g.name }, { name: 'Memory', number: true, sort: (g) => g.memory, cell: (g) => `${g.memory} GB` }, { name: 'Pool', cell: (g) => g.pool ?? '–' },
    { name: 'Secure', number: true, narrow: true, sort: (g) => g.price.secure, cell: (g) => usd(g.price.secure) }, { name: 'Community', number: true, sort: (g) => g.price.community, cell: (g) => usd(g.price.community) }, { name: 'Serverless', number: true, cell: (g) => usd(g.price.serverless) },
    { name: 'Change', narrow: true, cell: (g) => <GPUPrice of={g} done={list.reload} /> },
  ]} /><Cli line="gantry admin gpu-type list" /></>
}

type CPU = Schemas['CPUFlavorEntry']

function Flavor({ of: f, done }: { of?: CPU; done(): void }) {
  const [open, set] = useState(false)
  return (
    <>
      <button type="button" class={f ? '' : 'primary'} onClick={() => set(true)}>{f ? 'Change' : 'New flavor'}</button>
      {open && <Dialog title={f?.name ?? 'New flavor'} close={() => set(false)}><Asking label="Save" act={async (read) => {
        await call('put', '/admin/v1/cpu-flavors/{id}', { path: { id: f?.id ?? read('id') }, body: {
          name: read('name'), group: read('group'), vcpu: { min: Number(read('min')), max: Number(read('max')) }, ramGbPerVcpu: Number(read('ram')), diskGbPerVcpu: Number(read('disk')),
          price: { securePerVcpu: Number(read('secure')), serverlessPerVcpu: Number(read('serverless')) },
        } })
        set(false)
        done()
      }}>
        <div class="columns">
          {!f && <Field label="Id"><input name="id" required autoFocus placeholder="cpu3g" /></Field>}
          <Field label="Name"><input name="name" required defaultValue={f?.name} /></Field><Field label="Group"><input name="group" required defaultValue={f?.group} /></Field>
          <Field label="vCPUs at least"><input name="min" type="number" min={1} required defaultValue={String(f?.vcpu.min ?? 2)} /></Field><Field label="vCPUs at most"><input name="max" type="number" min={1} required defaultValue={String(f?.vcpu.max ?? 32)} /></Field>
          <Field label="GB of memory for each"><input name="ram" type="number" step="0.5" min={0.5} required defaultValue={String(f?.ramGbPerVcpu ?? 4)} /></Field><Field label="GB of disk at most for each"><input name="disk" type="number" min={1} required defaultValue={String(f?.diskGbPerVcpu ?? 10)} /></Field>
          <Field label="USD per vCPU and hour"><input name="secure" type="number" step="0.001" min={0} required defaultValue={String(f?.price.securePerVcpu ?? '')} /></Field><Field label="of workers"><input name="serverless" type="number" step="0.001" min={0} required defaultValue={String(f?.price.serverlessPerVcpu ?? '')} /></Field>
        </div>
      </Asking></Dialog>}
    </>
  )
}

function CPUPrices() {
  const list = useOnce<Schemas['CPUFlavorEntryList']>('/admin/v1/cpu-flavors')
  return <><Failure of={list.error} /><Table label="CPU flavors" rows={list.value?.cpuFlavors ?? []} loading={!list.value && !list.error} id={(f) => f.id} text={(f) => `${f.id} ${f.name}`} filters={<Flavor done={list.reload} />} empty={<p class="empty">No CPU flavors.</p>} columns={[
    { name: 'Flavor', narrow: true, sort: (f) => f.id, cell: (f) => <span title={f.name}>{f.id}</span> }, { name: 'Group', cell: (f) => f.group }, { name: 'vCPUs', cell: (f) => `${f.vcpu.min}–${f.vcpu.max}` }, { name: 'Memory each', number: true, cell: (f) => `${f.ramGbPerVcpu} GB` },
    { name: 'USD / vCPU h', number: true, narrow: true, sort: (f) => f.price.securePerVcpu, cell: (f) => usd(f.price.securePerVcpu, 3) }, { name: 'Of workers', number: true, cell: (f) => usd(f.price.serverlessPerVcpu, 3) },
    { name: '', narrow: true, cell: (f) => <><Flavor of={f} done={list.reload} /> <Sure label="Delete" word={f.id} ask={<p>No new pod can have it.</p>} act={() => void attempt(`${f.id} was deleted.`, () => call('delete', '/admin/v1/cpu-flavors/{id}', { path: { id: f.id } }).then(list.reload))} /></> },
  ]} /><Cli line="gantry admin cpu-flavor list" /></>
}

function StoragePrices() {
  const prices = useOnce<Schemas['StoragePrices']>('/admin/v1/storage-prices')
  const v = prices.value
  return <><Failure of={prices.error} />{v && <Card title="USD per GB and month"><Asking label="Save" act={async (read) => {
    await json('PUT', '/admin/v1/storage-prices', Object.fromEntries(Object.keys(v).map((k) => [k, Number(read(k))])))
    await attempt('The prices were saved.', async () => prices.reload())
  }}><div class="columns">{Object.entries(v).map(([k, n]) => <Field key={k} label={k.replace(/([A-Z])/g, ' $1').toLowerCase()}><input name={k} type="number" step="0.001" min={0} defaultValue={String(n)} required /></Field>)}</div></Asking></Card>}<Cli line="gantry admin storage-prices get" /></>
}

export const Prices = () => <Page wide title="Prices"><Tabs names={['GPUs', 'CPUs', 'Storage']}>{(tab) => (tab === 'GPUs' ? <GPUPrices /> : tab === 'CPUs' ? <CPUPrices /> : <StoragePrices />)}</Tabs></Page>
