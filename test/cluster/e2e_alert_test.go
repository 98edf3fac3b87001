//go:build cluster

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/test/await"
)

const prometheusAddress = "127.0.0.1:9790" // in the cluster's network

// prometheus is a Prometheus server that scrapes the node daemons and evaluates the shipped alerts.
type prometheus struct {
	*user
	client http.Client
}

// startPrometheus starts the server and waits until it has metrics of the user's group.
func (u *user) startPrometheus() *prometheus {
	u.t.Helper()
	out, err := exec.CommandContext(u.ctx, shipped(u.t, "test/setup.sh"), "prometheus").CombinedOutput()
	require.NoError(u.t, err, string(out))
	dir := u.t.TempDir()
	require.NoError(u.t, os.WriteFile(filepath.Join(dir, "rules.yaml"), hastyRules(u.t), 0o600))
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n- job_name: flexlvm-gc\n  static_configs:\n"
	daemons := kubectl(u.ctx, u.t, "-n", "flexlvm-system", "get", "pods", "-l", "app.kubernetes.io/name=flexlvm-gc", "-o",
		`jsonpath={range .items[*]}{.status.podIP} {.spec.nodeName}{"\n"}{end}`)
	for line := range strings.Lines(daemons) {
		address, node, _ := strings.Cut(strings.TrimSpace(line), " ")
		// The labels are those that podmonitor.yaml sets.
		config += fmt.Sprintf("  - {targets: [%q], labels: {job: flexlvm-gc, node: %s}}\n", address+":9809", node)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	require.NoError(u.t, os.WriteFile(file, []byte(config), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(u.t, err)
	server := shared.Command(u.ctx, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddress)
	server.Stdout, server.Stderr = log, log
	require.NoError(u.t, server.Start())
	u.t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait() // it ends by a signal
		if u.t.Failed() {
			said, _ := os.ReadFile(log.Name())
			u.t.Logf("%s\n%s", config, said)
		}
		require.NoError(u.t, log.Close())
	})
	p := &prometheus{u, http.Client{Transport: &http.Transport{DialContext: shared.Dial}}}
	await.Until(u.t, patience, func() string {
		up, group := p.query(`up{job="flexlvm-gc"} == 1`), p.query(`flexlvm_pool_size_bytes{pool="`+userGroup+`"}`)
		return await.Missing(len(up) == 2 && len(group) == 1, "the daemons are not scraped: %v %v", up, group)
	})
	return p
}

// hastyRules returns the shipped alerts without `for`, so that they fire immediately.
func hastyRules(t *testing.T) []byte {
	t.Helper()
	content, err := os.ReadFile(shipped(t, "monitoring/alerts.yaml"))
	require.NoError(t, err)
	lasted := regexp.MustCompile(`(?m)^ +for: .*\n`)
	require.Greater(t, len(lasted.FindAll(content, -1)), 15)
	var object struct {
		Spec json.RawMessage `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(lasted.ReplaceAll(content, nil), &object))
	rules, err := yaml.JSONToYAML(object.Spec)
	require.NoError(t, err)
	return rules
}

// get queries the server's API and reports whether it answered.
func (p *prometheus) get(path string, into any) bool {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "http://"+prometheusAddress+path, nil)
	require.NoError(p.t, err)
	response, err := p.client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK && json.NewDecoder(response.Body).Decode(into) == nil
}

// query returns the series that an expression selects.
func (p *prometheus) query(expr string) []any {
	p.t.Helper()
	var answer struct{ Data struct{ Result []any } }
	p.get("/api/v1/query?query="+url.QueryEscape(expr), &answer)
	return answer.Data.Result
}

// alerting is an alerting rule as Prometheus lists it.
type alerting struct {
	Name           string
	LastEvaluation time.Time
	Alerts         []struct {
		Labels, Annotations map[string]string
		State               string
	}
}

// rule returns a rule's last evaluation, if the server has the rule.
func (p *prometheus) rule(name string) (alerting, bool) {
	p.t.Helper()
	var answer struct {
		Data struct{ Groups []struct{ Rules []alerting } }
	}
	if !p.get("/api/v1/rules", &answer) {
		return alerting{}, false
	}
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			if rule.Name == name {
				return rule, true
			}
		}
	}
	return alerting{}, false
}

// is waits until the alert about the user's group has a state; "" means that there is no alert. Only
// evaluations after the call count, because before its first evaluation no rule has an alert.
func (p *prometheus) is(alert, state string) {
	p.t.Helper()
	began := time.Now()
	await.Until(p.t, patience, func() string {
		rule, found := p.rule(alert)
		if !found || !rule.LastEvaluation.After(began) {
			return fmt.Sprintf("Prometheus has not evaluated rule %s since %s: %+v", alert, began.Format(time.TimeOnly), rule)
		}
		now := ""
		for _, a := range rule.Alerts {
			if a.Labels["pool"] == userGroup {
				require.Equal(p.t, "node1", a.Labels["node"])
				require.Equal(p.t, "docs/alerts.md#"+strings.ToLower(alert), a.Annotations["runbook"])
				now = a.State
			}
		}
		return await.Missing(now == state, "alert %s is %q, not %q", alert, now, state)
	})
	p.t.Logf("alert %s is %q, seen after %.1f s", alert, state, time.Since(began).Seconds())
}

// followsRunbook runs all commands of an alert's documentation verbatim: kubectl's as the user, the
// others on node1.
func (u *user) followsRunbook(alert string, placeholders ...string) {
	u.t.Helper()
	content, err := os.ReadFile(shipped(u.t, "docs/alerts.md"))
	require.NoError(u.t, err)
	_, section, found := strings.Cut(string(content), "\n## "+alert+"\n")
	require.True(u.t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)\n```\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.NotEmpty(u.t, blocks)
	for _, block := range blocks {
		for line := range strings.Lines(block[1]) {
			line = strings.NewReplacer(placeholders...).Replace(strings.TrimSpace(line))
			if strings.HasPrefix(line, "kubectl ") {
				u.shell(line)
			} else {
				u.t.Log(line, onNode(u.ctx, u.t, "node1", line))
			}
		}
	}
}
