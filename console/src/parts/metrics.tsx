import { useEffect, useState } from 'preact/hooks'
import type uPlot from 'uplot'
import { call, type Schemas } from '../api'
import { Card, Cli, Failure } from '../ui'
import { Chart } from './chart'

interface Sample {
  at: number
  of: NonNullable<Schemas['Pod']['runtime']>
}

const every = 5000 // ms; measures are no events, so they are read while somebody looks
const most = 720

export function Metrics({ id, running }: { id: string; running: boolean }) {
  const [samples, set] = useState<Sample[]>([])
  const [error, fail] = useState<Error>()
  useEffect(() => {
    if (!running) return
    const stop = new AbortController()
    let timer: ReturnType<typeof setTimeout>
    const look = async () => {
      if (!document.hidden) {
        try {
          const { runtime } = await call('get', '/v2/pods/{id}', { path: { id }, signal: stop.signal })
          if (runtime) set((s) => [...s.slice(-most), { at: Date.now() / 1000, of: runtime }])
          fail(undefined)
        } catch (e) {
          if (!stop.signal.aborted) fail(e as Error)
        }
      }
      if (!stop.signal.aborted) timer = setTimeout(look, every)
    }
    void look()
    return () => {
      stop.abort()
      clearTimeout(timer)
    }
  }, [id, running])
  if (!running) return <p class="note">Only a pod that runs is measured.</p>
  if (samples.length < 2) return <><Failure of={error} /><p class="dim" role="status">The first measures are on their way: one comes every {every / 1000} seconds.</p></>
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
      <p class="dim">Measured every {every / 1000} seconds from the moment at which this page was opened. Longer histories are Prometheus’s.</p>
      <Cli line={`gantry pod get ${id} -o jsonpath='{.runtime}'`} />
    </>
  )
}
