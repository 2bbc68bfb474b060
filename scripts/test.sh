#!/usr/bin/env bash
# Runs everything that a change must pass, in two lanes side by side: what computes, and what breaks real processes and
# mostly waits. More lanes, or priorities, starve tests on a machine of two cores and end no sooner. Prints the output of
# each target once it has ended, and at last a table of all. Fails when one has failed; the others are run to their end
# nevertheless.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compute=(check-generate lint unit sim fuzz-decoders bench-once deb-lint ansible-lint)
real=(hostile survive test-containerd nfs volumes networks chaos-short e2e clients console-test)

logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$logs"' EXIT

# spent prints the seconds of processor time that children of a shell used between two outputs of `times`.
spent() { awk -F '[ms ]+' 'FNR == 2 {last = now; now = 60 * $1 + $2 + 60 * $3 + $4} END {print int(now - last)}' "$@"; }

# lane runs targets one after the other, and notes how each ended, and how many seconds and how much processor time it took.
lane() {
	local target began child status
	trap 'kill "$child"; wait; exit 143' TERM
	for target in "$@"; do
		began=$EPOCHSECONDS
		times >"$logs/$target.before"
		FLAKES=$logs/$target.flakes make --no-print-directory "$target" &>"$logs/$target.log" &
		child=$!
		status=0
		wait "$child" || status=$?
		times >"$logs/$target.after"
		echo "$target $((EPOCHSECONDS - began)) $status $(spent "$logs/$target".{before,after})" >>"$logs/ended"
		{ flock 9 && echo "== $target" && cat "$logs/$target.log"; } 9>"$logs/printing"
	done
}

began=$EPOCHSECONDS
# What several lanes need is made first.
make --no-print-directory build tools runtimes
lane "${compute[@]}" &
lane "${real[@]}" &
wait

echo
printf '%-16s %8s %8s  %s\n' target seconds cpu outcome
failed=0
for target in "${compute[@]}" "${real[@]}"; do
	read -r _ seconds status cpu < <(grep "^$target " "$logs/ended")
	outcome=ok
	[ "$status" = 0 ] || { outcome=FAILED failed=1; }
	printf '%-16s %8s %8s  %s\n' "$target" "$seconds" "$cpu" "$outcome"
done
# The last lines of an output are what people see of it: name there what failed.
for target in "${compute[@]}" "${real[@]}"; do
	if grep -q "^$target [0-9]* 0 " "$logs/ended"; then continue; fi
	echo
	echo "$target: first failures"
	grep -E '^([a-z0-9.-]+: )?(---|===) FAIL|^\s+--- FAIL|panic:|^\s+Test\S+ \([0-9.hms]+\)$|DATA RACE|^FAIL|\*\*\*|: (level=error|error:)' "$logs/$target.log" | cut -c1-300 | head -n 30 || true
done
printf '%-16s %8s\n' total $((EPOCHSECONDS - began))
if cat "$logs"/*.flakes 2>/dev/null | grep -q .; then
	echo
	echo 'flakes: failed once, passed when run again; each needs a line with its cause in docs/track-record.md'
	cat "$logs"/*.flakes
fi
exit "$failed"
