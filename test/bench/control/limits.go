package control

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// RunLimits returns the rates under different limits on the provisioner's requests.
func RunLimits(ctx context.Context, binary, dir string, log io.Writer) (lines []string, err error) {
	err = withBed(ctx, binary, dir, log, func(b *bed) error {
		if err := b.nodes(ctx, 0, fewNodes); err != nil {
			return fmt.Errorf("make nodes: %w", err)
		}
		if _, err := b.example(ctx); err != nil { // also warms up the API server
			return err
		}
		lines, err = b.limits(ctx)
		return err
	})
	return lines, err
}

// limits returns how long a thousand claims take under different request rate limits of the provisioner, and how
// API priority and fairness treats the requests.
func (b *bed) limits(ctx context.Context) (lines []string, err error) {
	defer func() { b.flags = nil }()
	for _, qps := range []int{defaultQPS / 2, defaultQPS, 2 * defaultQPS} {
		b.flags = []string{fmt.Sprintf("--kube-api-qps=%d", qps), fmt.Sprintf("--kube-api-burst=%d", 2*qps)}
		before, err := b.fairness(ctx)
		if err != nil {
			return lines, err
		}
		took, err := b.provisioned(ctx, fmt.Sprintf("limit-%d", qps))
		if err != nil {
			return lines, err
		}
		after, err := b.fairness(ctx)
		if err != nil {
			return lines, err
		}
		line := fmt.Sprintf("%d claims with %d requests per second, %d at once: %.1f s; of %.0f requests of service accounts %.0f were turned away and the others waited %.2f ms each",
			perRound, qps, 2*qps, took.Seconds(), after.sent-before.sent, after.rejected-before.rejected, 1000*(after.waited-before.waited)/(after.sent-before.sent))
		fmt.Fprintln(b.log, line)
		lines = append(lines, line)
	}
	return lines, nil
}

// A fairness is the API server's statistics of all service accounts' requests so far.
type fairness struct {
	sent, rejected float64
	waited         float64 // in the queue, in seconds
}

func (b *bed) fairness(ctx context.Context) (f fairness, err error) {
	text, err := b.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return f, fmt.Errorf("read the API server's metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, rest, labelled := strings.Cut(line, "{")
		if !labelled || !strings.Contains(rest, `flow_schema="service-accounts"`) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, "}")+1:]), 64)
		if err != nil {
			return f, fmt.Errorf("read the API server's metrics: %q: %w", line, err)
		}
		switch name {
		case "apiserver_flowcontrol_dispatched_requests_total":
			f.sent += value
		case "apiserver_flowcontrol_rejected_requests_total":
			f.rejected += value
		case "apiserver_flowcontrol_request_wait_duration_seconds_sum":
			f.waited += value
		}
	}
	if f.sent == 0 {
		return f, fmt.Errorf("read the API server's metrics: they tell of no request of service accounts")
	}
	return f, nil
}
