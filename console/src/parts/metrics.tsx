import { useEffect, useState } from 'preact/hooks'
import type uPlot from 'uplot'
import { ApiError, type Schemas } from '../api'
import { follow } from '../sse'
import { Card, Cli, Failure } from '../ui'
import { Chart } from './chart'

interface Sample {
  at: number
  of: NonNullable<Schemas['Pod']['runtime']>
}

const most = 720

export function Metrics({ id, running }: { id: string; running: boolean }) {
  const [samples, set] = useState<Sample[]>([])
  const [error, fail] = useState<Error>()
  useEffect(() => {
    if (!running) return
    return follow(`/v2/pods/${encodeURIComponent(id)}/metrics`, {
      state: (_, e) => fail(e),
      message: (m) => {
        if (m.name === 'error') return fail(new ApiError(0, JSON.parse(m.data) as Schemas['Problem']))
        const { at, runtime } = JSON.parse(m.data) as { at: string; runtime: Sample['of'] | null }
        if (runtime) set((s) => [...s.slice(-most), { at: Date.parse(at) / 1000, of: runtime }])
      },
    })
  }, [id, running])
  if (!running) return <p class="note">Only a pod that runs is measured.</p>
  if (samples.length < 2) return <><Failure of={error} /><p class="dim" role="status">The first measures are on their way: one comes every 5 seconds.</p></>
  const x = samples.map((s) => s.at)
  const gpus = samples.at(-1)?.of.gpus.length ?? 0
  const data = (...ys: number[][]): uPlot.AlignedData => [x, ...ys]
  const each = [...Array(gpus).keys()]
  return (
    <>
      <Failure of={error} />
      <Card title="CPU, memory and disk, per cent of the pod’s share">
        <Chart label="CPU, memory and disk" max={100} unit="%" series={['CPU', 'Memory', 'Disk']} data={data(samples.map((s) => s.of.cpu.util), samples.map((s) => s.of.memory.util), samples.map((s) => s.of.disk.util))} />
      </Card>
      {gpus > 0 && <div class="grid">
        <Card title="GPUs, per cent busy"><Chart label="GPUs" max={100} unit="%" series={each.map((i) => `GPU ${i}`)} data={data(...each.map((i) => samples.map((s) => s.of.gpus[i]?.util ?? 0)))} /></Card>
        <Card title="GPU memory, per cent"><Chart label="GPU memory" max={100} unit="%" series={each.map((i) => `GPU ${i}`)} data={data(...each.map((i) => samples.map((s) => s.of.gpus[i]?.memoryUtil ?? 0)))} /></Card>
      </div>}
      <p class="dim">Measured every 5 seconds from the moment at which this page was opened. Longer histories are Prometheus’s.</p>
      <Cli line={`gantry pod get ${id} -o jsonpath='{.runtime}'`} />
    </>
  )
}
