// Package monitoring_test checks the alerts and the dashboard against the daemons' exported metrics and
// against their documentation.
package monitoring_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/test/built"
)

// A rule is one alerting rule.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts returns the rules of alerts.yaml and its spec, which is a Prometheus rule file.
func alerts(t *testing.T) (all []rule, spec []byte) {
	t.Helper()
	content, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	var object struct {
		Spec struct {
			Groups []struct {
				Rules []rule `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(content, &object))
	for _, g := range object.Spec.Groups {
		all = append(all, g.Rules...)
	}
	require.Greater(t, len(all), 15)
	var raw struct {
		Spec json.RawMessage `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(content, &raw))
	spec, err = yaml.JSONToYAML(raw.Spec)
	require.NoError(t, err)
	return all, spec
}

// A query is a query of the dashboard with its variables filled in.
type query struct{ panel, expr string }

func queries(t *testing.T) (all []query) {
	t.Helper()
	content, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(content, &dashboard))
	for _, p := range dashboard.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$node", ".*", "$pool", ".*").Replace(target.Expr)
			require.NotContains(t, expr, "$", p.Title)
			all = append(all, query{panel: p.Title, expr: expr})
		}
	}
	require.Greater(t, len(all), 15)
	return all
}

// exported returns the lines that each daemon exports, by the daemon's name.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("exported/*.txt")
	require.NoError(t, err)
	require.Len(t, files, 3)
	out := map[string][]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		out["flexlvm-"+strings.TrimSuffix(filepath.Base(file), ".txt")] = strings.Split(strings.TrimSpace(string(content)), "\n")
	}
	return out
}

// series returns the exported series as Prometheus stores them, with the labels that podmonitor.yaml
// adds.
func series(t *testing.T) (all []string) {
	t.Helper()
	line := regexp.MustCompile(`^(\w+)(?:\{(.*)\})? 1$`)
	for job, lines := range exported(t) {
		target := fmt.Sprintf(`instance="10.0.0.1:9809",job=%q,namespace="flexlvm-system",node="node-1",pod="one"`, job)
		for _, l := range lines {
			if strings.HasPrefix(l, "#") {
				continue
			}
			m := line.FindStringSubmatch(l)
			require.NotNil(t, m, l)
			labels := target
			if m[2] != "" {
				labels = m[2] + "," + target
			}
			all = append(all, m[1]+"{"+labels+"}")
		}
		all = append(all, "up{"+target+"}", "process_start_time_seconds{"+target+"}")
	}
	return all
}

var metricName = regexp.MustCompile(`\bflexlvm_\w+`)

func TestAlertsAreAboutWhatIsExported(t *testing.T) {
	known := strings.Join(series(t), "\n")
	all, _ := alerts(t)
	for _, a := range all {
		for _, name := range metricName.FindAllString(a.Expr, -1) {
			require.Contains(t, known, name+"{", a.Alert)
		}
	}
}

// Each alert has a section in alerts.md, and each section an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	content, err := os.ReadFile("../docs/alerts.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(content), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	all, _ := alerts(t)
	for _, a := range all {
		require.Contains(t, sections, a.Alert)
		require.Contains(t, sections[a.Alert], "```", "%s says nothing to run", a.Alert)
		section := "docs/alerts.md#" + strings.ToLower(a.Alert)
		require.Equal(t, section, a.Annotations["runbook"])
		require.Equal(t, "https://github.com/flexlvm/flexlvm/blob/main/"+section, a.Annotations["runbook_url"], "which pagers open")
		require.Contains(t, []string{"critical", "warning"}, a.Labels["severity"], a.Alert)
		delete(sections, a.Alert)
	}
	require.Empty(t, sections, "these are about no alert")
}

var update = flag.Bool("update", false, "write docs/reference/metrics.md")

// The reference lists each metric with its type, labels and help, as the daemons export them.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Written by `make reference` from monitoring/exported: change the help in the code. -->\n\n" +
		"Served under `/metrics`, for [whoever asks](../security.md#who-reads-metrics) by default. [alerts.md](../alerts.md) has alerts on them, with what\n" +
		"each means and what to run, and a dashboard. Those of Go and of the process (`go_…`, `process_…`) are not listed here.\n")
	for _, daemon := range []struct{ name, where string }{
		{"flexlvm-gc", "The node daemon, on port 9809 of each node."},
		{"flexlvm-provisioner", "The provisioner, on port 8080 of its pods. Series of datasets have the labels `dataset_…` ([datasets.md](../datasets.md#progress))."},
		{"flexlvm-nfs-provisioner", "The provisioner of volumes on NFS ([jobs.md](../jobs.md)), on port 8080 of its pods."},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", daemon.name, daemon.where)
		b.WriteString(metricRows(exported(t)[daemon.name]))
	}
	const file = "../docs/reference/metrics.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "`make reference` writes %s", file)
}

var labelName = regexp.MustCompile(`(\w+)="`)

// metricRows returns the rows of the table of a daemon's metrics. The lines are in Prometheus' order:
// each metric's help, its type, then its series.
func metricRows(lines []string) string {
	var b strings.Builder
	var name, help, kind string
	var labels []string
	flush := func() {
		if name != "" {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), help)
		}
		labels = nil
	}
	for _, l := range lines {
		if rest, is := strings.CutPrefix(l, "# HELP "); is {
			flush()
			name, help, _ = strings.Cut(rest, " ")
			continue
		}
		if rest, is := strings.CutPrefix(l, "# TYPE "); is {
			_, kind, _ = strings.Cut(rest, " ")
			continue
		}
		for _, m := range labelName.FindAllStringSubmatch(l, -1) {
			if quoted := "`" + m[1] + "`"; m[1] != "le" && !slices.Contains(labels, quoted) {
				labels = append(labels, quoted)
			}
		}
	}
	flush()
	return b.String()
}

// promtool runs Prometheus' own tool, which a nested module requires. The build leaves out service
// discovery, which these tests do not need and which is most of the code to compile.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	program, err := built.Module(t.Context(), "../tools/promtool", "promtool", "github.com/prometheus/prometheus/cmd/promtool", t.Output(), "-tags=remove_all_sd")
	require.NoError(t, err)
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	require.NoError(t, cmd.Run(), "promtool %s: %s", strings.Join(args, " "), &out)
}

func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	for job, lines := range exported(t) {
		t.Log(job)
		promtool(t, strings.Join(lines, "\n")+"\n", "check", "metrics")
	}
}

// The rules are tested in alerts_test.yaml. This test runs those tests and checks that every alert has
// some.
func TestAlerts(t *testing.T) {
	all, spec := alerts(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), spec, 0o600))
	tests, err := os.ReadFile("alerts_test.yaml")
	require.NoError(t, err)
	for _, a := range all {
		require.Contains(t, string(tests), "        alertname: "+a.Alert+"\n        exp_alerts:\n", "it is never seen to fire")
		require.Contains(t, string(tests), "alertname: "+a.Alert+"}", "it is never seen not to fire")
	}
	file := filepath.Join(dir, "tests.yaml")
	require.NoError(t, os.WriteFile(file, tests, 0o600))
	promtool(t, "", "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(dir, "rules.yaml"))
	promtool(t, "", "test", "rules", file)
}

// Every query of the dashboard finds series among the exported metrics.
func TestDashboardIsAboutWhatIsExported(t *testing.T) {
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for _, s := range series(t) {
		fmt.Fprintf(&b, "      - {series: '%s', values: '1+1x180'}\n", s)
	}
	b.WriteString("    promql_expr_test:\n")
	for _, q := range queries(t) {
		fmt.Fprintf(&b, "      - {expr: 'count(%s) > bool 0', eval_time: 2h, exp_samples: [{labels: '{}', value: 1}]}\n", q.expr)
	}
	file := filepath.Join(t.TempDir(), "tests.yaml")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	promtool(t, "", "test", "rules", file)
}

// A time that is 0 has not come: the dashboard shows no age of decades for it, such as on nodes without LVM.
func TestDashboardHasNoAgeOfWhatNeverWas(t *testing.T) {
	times := regexp.MustCompile(`\w+_timestamp_seconds`)
	series, expressions := map[string]bool{}, ""
	for _, q := range queries(t) {
		for _, name := range times.FindAllString(q.expr, -1) {
			series[name] = true
			expressions += fmt.Sprintf("      - {expr: '%s', eval_time: 1m, exp_samples: []}\n", q.expr)
		}
	}
	require.NotEmpty(t, series)
	var b strings.Builder
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for name := range series {
		fmt.Fprintf(&b, "      - {series: '%s{node=\"node-1\"}', values: '0x5'}\n", name)
	}
	b.WriteString("    promql_expr_test:\n" + expressions)
	file := filepath.Join(t.TempDir(), "tests.yaml")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	promtool(t, "", "test", "rules", file)
}

// POOL of an alert is its label pool, which has the volume group. --pool and vgextend take other names.
func TestRunbooksUseTheLabelPool(t *testing.T) {
	content, err := os.ReadFile("../docs/alerts.md")
	require.NoError(t, err)
	require.NotRegexp(t, `GROUP/POOL|--pool POOL|vgextend [^`+"`"+`\n]*\bPOOL\b`, string(content))
	require.Regexp(t, `lvextend [^`+"`"+`\n]* POOL\b`, string(content))
}
