// Package control measures the control plane side: the real provisioner with a real API server and simulated nodes.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	fewNodes   = 50
	perRound   = 1000 // claims
	probes     = 200  // single claims whose latency is measured
	probeEvery = 60 * time.Millisecond
)

// RunRates compares the provisioner with a plain loop. binary is the provisioner's program, dir the folder for
// files. It returns the lines of the table, in the format of package figure.
func RunRates(ctx context.Context, binary, dir string, log io.Writer) (table []string, err error) {
	err = withBed(ctx, binary, dir, log, func(b *bed) error {
		rates, err := b.rates(ctx)
		for _, f := range rates {
			table = append(table, f.String())
		}
		return err
	})
	return table, err
}

// RunScale returns the figures for large clusters.
func RunScale(ctx context.Context, binary, dir string, log io.Writer) (lines []string, err error) {
	err = withBed(ctx, binary, dir, log, func(b *bed) error {
		lines, err = b.scale(ctx)
		return err
	})
	return lines, err
}

func withBed(ctx context.Context, binary, dir string, log io.Writer, do func(*bed) error) (err error) {
	b, err := start(ctx, binary, dir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	return do(b)
}

// rates compares the provisioner with a plain loop, a thousand claims at a time, and measures the latency of single
// claims between the rounds: with 1,000 existing claims, and with 5,000.
func (b *bed) rates(ctx context.Context) ([]fmt.Stringer, error) {
	if err := b.nodes(ctx, 0, fewNodes); err != nil {
		return nil, fmt.Errorf("make nodes: %w", err)
	}
	like, err := b.example(ctx)
	if err != nil {
		return nil, err
	}
	var ours, theirs []time.Duration
	latency := map[int]pace{}
	// In turns, in reverse order from pair to pair.
	for i, provisioner := range []bool{true, false, false, true, true, false} {
		took, times := time.Duration(0), &theirs
		if provisioner {
			times = &ours
			took, err = b.provisioned(ctx, fmt.Sprintf("ours-%d", i))
		} else {
			took, err = b.looped(ctx, fmt.Sprintf("plain-%d", i), like)
		}
		if err != nil {
			return nil, err
		}
		*times = append(*times, took)
		fmt.Fprintf(b.log, "%d claims: provisioner %t, %.1f s\n", (i+1)*perRound, provisioner, took.Seconds())
		if claims := (i + 1) * perRound; claims == 1000 || claims == 5000 {
			if latency[claims], err = b.latency(ctx, fmt.Sprintf("probe-%d", claims), like); err != nil {
				return nil, err
			}
		}
	}
	return []fmt.Stringer{
		figure.Figure{
			Name: "1,000 claims on 50 nodes, from the first PersistentVolume to the last ÷ a plain loop", Rounds: len(ours), Target: 1.25,
			Ours: figure.Median(ours), Theirs: figure.Median(theirs),
		},
		figure.Figure{
			Name: "from a claim to its PersistentVolume, 5,000 claims there ÷ 1,000", Rounds: probes, Target: 1.2,
			Ours: latency[5000].as(latency[1000]), Theirs: latency[1000].ours,
		},
	}, nil
}

// example returns a PersistentVolume that the provisioner has created.
func (b *bed) example(ctx context.Context) (*corev1.PersistentVolume, error) {
	p, err := b.launch()
	if err != nil {
		return nil, err
	}
	some, err := b.waiting(ctx, "example", fewNodes, fewNodes)
	if err == nil {
		_, _, err = b.arrived.await(ctx, some.names)
	}
	if err := errors.Join(err, b.letGo(ctx), p.end()); err != nil {
		return nil, err
	}
	return b.client.CoreV1().PersistentVolumes().Get(ctx, some.names[0], metav1.GetOptions{})
}

// provisioned returns how long the provisioner takes for claims that exist when it starts, from its first
// PersistentVolume to its last.
func (b *bed) provisioned(ctx context.Context, prefix string) (time.Duration, error) {
	claims, err := b.waiting(ctx, prefix, perRound, fewNodes)
	if err != nil {
		return 0, err
	}
	p, err := b.launch()
	if err != nil {
		return 0, err
	}
	first, last, err := b.arrived.await(ctx, claims.names)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, p.logEnd())
	}
	return last.Sub(first), errors.Join(err, p.end(), b.letGo(ctx))
}

// looped returns how long a client takes that does nothing but create such PersistentVolumes, measured in the same
// way.
func (b *bed) looped(ctx context.Context, prefix string, like *corev1.PersistentVolume) (time.Duration, error) {
	claims, err := b.served(ctx, prefix, perRound, 0, fewNodes)
	if err != nil {
		return 0, err
	}
	volumes := make([]*corev1.PersistentVolume, perRound)
	for i := range volumes {
		volumes[i] = volumeLike(like, claims.names[i], claims.node(i), claims.claims[i])
	}
	err = eachOf(defaultWorkers, perRound, func(i int) error {
		_, err := b.plain.CoreV1().PersistentVolumes().Create(ctx, volumes[i], metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("create PersistentVolumes: %w", err)
	}
	first, last, err := b.arrived.await(ctx, claims.names)
	return last.Sub(first), err
}

// A pace is the median time from a claim to its PersistentVolume, created by the provisioner and by hand.
type pace struct{ ours, byHand time.Duration }

// as returns the provisioner's time, scaled to the speed that the API server had then.
func (p pace) as(then pace) time.Duration {
	return time.Duration(float64(p.ours) * float64(then.byHand) / float64(p.byHand))
}

// latency measures the pace of a provisioner that has little else to do.
func (b *bed) latency(ctx context.Context, prefix string, like *corev1.PersistentVolume) (pace, error) {
	p, err := b.launch()
	if err != nil {
		return pace{}, err
	}
	// The provisioner is working, and its first pass over the capacities is done.
	_, err = p.settled(ctx, 0)
	var found pace
	if err == nil {
		found, err = b.probe(ctx, prefix, like)
	}
	fmt.Fprintf(b.log, "%s: %s, by hand %s\n", prefix, found.ours, found.byHand)
	return found, errors.Join(err, p.end(), b.letGo(ctx))
}

// probe creates single claims, in turns for the provisioner and by hand.
func (b *bed) probe(ctx context.Context, prefix string, like *corev1.PersistentVolume) (pace, error) {
	const warmUp = 20
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var ours, byHand []time.Duration
	for i := range probes + warmUp {
		name, node := fmt.Sprintf("%s-%05d", prefix, i), nodeName(i%fewNodes)
		if err := b.pod(ctx, name); err != nil {
			return pace{}, err
		}
		<-tick.C
		began := time.Now()
		claim, err := b.claim(ctx, name, node, "")
		if err != nil {
			return pace{}, err
		}
		_, seen, err := b.arrived.await(ctx, []string{"pvc-" + string(claim.UID)})
		if err != nil {
			return pace{}, err
		}
		handBegan, handSeen, err := b.byHand(ctx, "hand-"+name, node, like)
		if err != nil {
			return pace{}, err
		}
		if i >= warmUp {
			ours, byHand = append(ours, seen.Sub(began)), append(byHand, handSeen.Sub(handBegan))
		}
	}
	return pace{figure.Median(ours), figure.Median(byHand)}, nil
}

// byHand creates a claim and its PersistentVolume. It returns when it began, and when the PersistentVolume was
// observed.
func (b *bed) byHand(ctx context.Context, name, node string, like *corev1.PersistentVolume) (began, seen time.Time, err error) {
	began = time.Now()
	volume := "pvc-" + name
	claim, err := b.claim(ctx, name, node, volume)
	if err != nil {
		return began, seen, err
	}
	if _, err := b.client.CoreV1().PersistentVolumes().Create(ctx, volumeLike(like, volume, node, claim), metav1.CreateOptions{}); err != nil {
		return began, seen, err
	}
	_, seen, err = b.arrived.await(ctx, []string{volume})
	return began, seen, err
}

// A stage is a size of cluster and the measurements at that size.
type stage struct {
	nodes, each int     // minimum number of volumes per node: those of earlier stages remain
	memory      float64 // the provisioner's memory target in MiB; 0: none
	place       int     // number of pods to place while all nodes have free space
}

var stages = []stage{
	// The largest cluster that places a pod within a second is among the first ones.
	{nodes: 500, each: 20, place: 10},
	{nodes: 750, each: 20, place: 10},
	{nodes: 1000, each: 20, memory: 120, place: 10},
	{nodes: 1250, each: 4, place: 10},
	{nodes: 1500, each: 4, place: 5},
	{nodes: 2000, each: 4, place: 5},
	{nodes: 5000, each: 4, place: 20},
}

// syntheticStages are simulated by a synthetic cluster: the first one also is in stages, for comparison, and the
// others are too large to exist.
var syntheticStages = []stage{
	{nodes: 1000, each: 20, memory: 120},
	{nodes: 2000, each: 50},
	{nodes: 5000, each: 100, memory: 1.2 * 1024},
}

// scale fills the API with nodes and volumes, and measures a newly started provisioner and the placement of pods.
func (b *bed) scale(ctx context.Context) (lines []string, err error) {
	if err := b.nodes(ctx, 0, fewNodes); err != nil {
		return nil, fmt.Errorf("make nodes: %w", err)
	}
	like, err := b.example(ctx)
	if err != nil {
		return nil, err
	}
	var before stage
	for _, s := range stages {
		began := time.Now()
		if err := b.fill(ctx, like, before, s); err != nil {
			return lines, err
		}
		fmt.Fprintf(b.log, "%d nodes with %d volumes each, or more, after %.0f s\n", s.nodes, s.each, time.Since(began).Seconds())
		var limit []string // nil: the manifest's limit, as memory is not measured
		if s.memory > 0 {
			limit = []string{memoryLimit(s.nodes * s.each)}
		}
		p, err := b.launch(limit...)
		if err != nil {
			return lines, err
		}
		more, err := b.look(ctx, p, before, s)
		if lines = append(lines, more...); err != nil {
			return lines, fmt.Errorf("%w: %s", err, p.logEnd())
		}
		if err := p.end(); err != nil {
			return lines, err
		}
		for _, line := range more {
			fmt.Fprintln(b.log, line)
		}
		before = s
	}
	return lines, nil
}

// memoryLimit returns the limit that docs/benchmarks.md recommends for this number of volumes.
func memoryLimit(volumes int) string {
	return fmt.Sprintf("GOMEMLIMIT=%dB", 60<<20+volumes*2253) // 2.2 KiB each
}

// fill creates the nodes and volumes that a stage has in addition to the stage before.
func (b *bed) fill(ctx context.Context, like *corev1.PersistentVolume, before, s stage) error {
	if from := max(fewNodes, before.nodes); from < s.nodes {
		if err := b.nodes(ctx, from, s.nodes); err != nil {
			return fmt.Errorf("make nodes: %w", err)
		}
	}
	// The volumes that existing nodes already have are stored again, unchanged.
	return b.crowd(ctx, like, 0, s.nodes, s.each)
}

// look measures a provisioner that was just started.
func (b *bed) look(ctx context.Context, p *process, before, s stage) (lines []string, err error) {
	offered, err := b.offered(ctx)
	if err != nil {
		return nil, err
	}
	classes := float64(offered)
	// The capacities that an earlier provisioner published remain.
	written, err := p.settled(ctx, float64(s.nodes-max(before.nodes, fewNodes))*classes)
	if err != nil {
		return nil, err
	}
	if s.memory > 0 {
		line, err := p.memoryOf(s)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
		storage, err := b.storage.NodeStorage(ctx, nodeName(s.nodes/2))
		if err != nil {
			return nil, err
		}
		if err := b.report(ctx, storage, roomOfNode-volume.TiB); err != nil {
			return nil, err
		}
		after, err := p.settled(ctx, written+1)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("writes of capacities for one change of one node: %g for each class, of %d (target 1)", (after-written)/classes, offered))
	}
	if s.place > 0 {
		placements, err := b.placement(ctx, s.nodes, s.place)
		return append(lines, placements...), err
	}
	return lines, nil
}
