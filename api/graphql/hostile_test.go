package graphql_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"gantry/test/plane"
)

type hostileDocument struct{ name, query, refusal string }

// hostile are documents that try to make the face work, and what their refusal says.
func hostile() []hostileDocument {
	many := func(n int, format string) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintf(&out, format, i)
		}
		return out.String()
	}
	chain := "{...F0}"
	for i := range 49 {
		chain += fmt.Sprintf(" fragment F%d on Query{a%d:countryCodes ...F%d ...F%d}", i, i, i+1, i+1)
	}
	return []hostileDocument{
		{"a document of 1 MB", "{myself{id" + strings.Repeat(" ", 1_000_000) + "}}", "larger than 524288 bytes"},
		{"a document of 1 MB of fields", "{" + strings.Repeat("myself{id}", 100_000) + "}", "larger than 524288 bytes"},
		{"a document of 500 kB", "{" + strings.Repeat("myself{id}", 50_000) + "}", "larger than 131072 bytes"},
		{"10,000 aliases", "{" + many(10_000, "a%d:myself{id}") + "}", "larger than 131072 bytes"},
		{"10,000 short aliases", "{" + many(10_000, "a%d:listings{id}")[:130_000], "more than 100 aliases"},
		{"101 aliases", "{" + many(101, "a%d:countryCodes ") + "}", "more than 100 aliases"},
		{"a depth of 1,000", strings.Repeat("{myself", 1000) + strings.Repeat("}", 1000), "more than 20 levels of selections"},
		{"a depth of 1,000 in inline fragments", "{" + strings.Repeat("...on Query{", 1000) + "countryCodes" + strings.Repeat("}", 1001), "more than 20 levels"},
		{"a list as deep as 1,000", "{gpuTypes(input:{ids:" + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + "}){id}}", "levels of lists and objects"},
		{"an object as deep as 1,000", "{pod(input:" + strings.Repeat("{podId:", 1000) + strings.Repeat("}", 1000) + "){id}}", "levels of lists and objects"},
		{"fragments in a circle", "{...A} fragment A on Query{...B} fragment B on Query{...A}", "Cannot spread fragment"},
		{"a fragment in itself", "{myself{...A}} fragment A on User{pods{id} ...A}", "Cannot spread fragment"},
		{"fragments in a circle of 50", "{...F0}" + many(49, " fragment F%[1]d on Query{a:countryCodes ...F0}") + "fragment F49 on Query{...F0}", "Cannot spread fragment"},
		{"fragments that double", chain, ""},
		{"51 fragments", "{countryCodes}" + many(51, " fragment F%d on Query{countryCodes}"), "more than 50 fragments"},
		{"201 spreads", "{" + many(201, "...{countryCodes}") + "}", "more than 200 spreads"},
		{"101 directives", "{countryCodes" + strings.Repeat(" @include(if:true)", 101) + "}", "more than 100 directives"},
		{"11 operations", many(11, "query Q%d{countryCodes} "), "more than 10 operations"},
		{"1,001 fields", "{myself{" + strings.Repeat("id ", 1001) + "}}", "more than 1000 fields"},
		{"1,000 times the same field with arguments", "{" + strings.Repeat(`pod(input:{podId:"a"}){id}`, 490) + "}", "Overlapping field validation aborted"},
		{"20,001 values", "{gpuTypes(input:{ids:[" + strings.Repeat(`"a"`, 20_001) + "]}){id}}", "more than 20000 names and values"},
		{"a block string", `{pod(input:{podId:"""a"""}){id}}`, "block string"},
		{"half a character", `{pod(input:{podId:"\ud83d"}){id}}`, "an escape that is not read"},
		{"an escape that Go has", `{pod(input:{podId:"\x41"}){id}}`, "an escape that is not read"},
		{"a string without an end", `{pod(input:{podId:"aaa`, "literal not terminated"},
		{"a number without an end", `{cpuFlavors(input:{ids:[` + strings.Repeat("9", 100_000) + `]}){id}}`, "a name or a number"},
		{"closing first", strings.Repeat("}", 100_000), ""},
		{"parentheses", strings.Repeat("(", 100_000), ""},
		{"zero bytes", strings.Repeat("\x00", 100_000), ""},
		{"comments", strings.Repeat("#\n", 60_000), ""},
		{"nothing", "", ""},
		{"variables without an end", "query(" + many(5000, "$a%d:Int ") + "){countryCodes}", "more than 400 variables"},
		{"variables that are not used", "query(" + many(400, "$a%d:Int ") + "){countryCodes}", "is never used"},
		{
			"introspection that multiplies",
			"{" + many(90, "a%d:__schema{...S}") + "} fragment S on __Schema{types{...A fields{name args{name type{...A}}type{...A fields{name type{...A}}}}}}" +
				"fragment A on __Type{kind}", "asks for more than 500000 fields",
		},
	}
}

// TestHostileDocumentsAreRefused has each refused in 10 MB, but the ones that only run reveals, and logs how long that takes.
func TestHostileDocumentsAreRefused(t *testing.T) {
	s := newSite(t)
	s.ask(plane.User, "{myself{id}}")
	for _, c := range hostile() {
		t.Run(c.name, func(t *testing.T) {
			least, memory := time.Hour, uint64(0)
			var got answer
			sent := body(c.query)
			for range 5 { // the best of some: other tests run beside this one
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				got = s.send(plane.User, sent)
				least = min(least, time.Since(start))
				runtime.ReadMemStats(&after)
				memory = after.TotalAlloc - before.TotalAlloc
			}
			t.Logf("%d bytes: %d in %s and %d kB: %.200s", len(sent), got.status, least, memory>>10, got.body)
			if got.status != 400 && got.status != 413 || c.refusal != "" && !strings.Contains(got.body, c.refusal) {
				t.Errorf("%d %.300s", got.status, got.body)
			}
			if strings.Contains(c.name, "multiplies") {
				return // it runs until it has resolved too much
			}
			if memory > 10<<20 {
				t.Errorf("it took %d kB", memory>>10)
			}
		})
	}
}
