// Package control measures the control side: the real provisioner against a real API
// server, with simulated nodes.
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
	fewNodes    = 50
	manyNodes   = 1000
	manyVolumes = 20 * manyNodes
	perRound    = 1000 // claims
	probes      = 200  // single claims whose latency is taken
	probeEvery  = 60 * time.Millisecond
)

// Run takes the figures. binary is the provisioner's program, dir for files. The
// lines come in the form of package figure: of the table, and for beneath it.
func Run(ctx context.Context, binary, dir string, log io.Writer) (table, beneath []string, err error) {
	b, err := start(ctx, binary, dir, log)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	rates, err := b.rates(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range rates {
		table = append(table, f.String())
	}
	beneath, err = b.scale(ctx)
	return table, beneath, err
}

// rates sets the provisioner beside a plain loop, a thousand claims at a time, and
// takes the latency of single claims between the rounds: with 1,000 claims there,
// and with 5,000.
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
	// In turns, each first in every other round.
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
			Name: "1,000 claims on 50 nodes, from the first PersistentVolume to the last ÷ a plain loop", Rounds: len(ours), Target: 2,
			Ours: figure.Median(ours), Theirs: figure.Median(theirs),
		},
		figure.Figure{
			Name: "from a claim to its PersistentVolume, 5,000 claims there ÷ 1,000", Rounds: probes, Target: 1.2,
			Ours: latency[5000].as(latency[1000]), Theirs: latency[1000].ours,
		},
	}, nil
}

// example is a PersistentVolume as the provisioner makes it.
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

// provisioned is how long the provisioner takes for claims that are there when it
// starts, from its first PersistentVolume to its last.
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

// looped is how long a client takes that does nothing but create such
// PersistentVolumes, by the same count.
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

// A pace is the median time from a claim to its PersistentVolume, made by the
// provisioner and made by hand.
type pace struct{ ours, byHand time.Duration }

// as is what our time would be, had the API server been as fast as it was then.
func (p pace) as(then pace) time.Duration {
	return time.Duration(float64(p.ours) * float64(then.byHand) / float64(p.byHand))
}

// latency takes the pace of a provisioner that has little else to do.
func (b *bed) latency(ctx context.Context, prefix string, like *corev1.PersistentVolume) (pace, error) {
	p, err := b.launch()
	if err != nil {
		return pace{}, err
	}
	// It has begun to work, and its first round of capacities is out of the way.
	_, err = p.settled(ctx, 0)
	var found pace
	if err == nil {
		found, err = b.probe(ctx, prefix, like)
	}
	fmt.Fprintf(b.log, "%s: %s, by hand %s\n", prefix, found.ours, found.byHand)
	return found, errors.Join(err, p.end(), b.letGo(ctx))
}

// probe makes single claims, for the provisioner and by hand in turns.
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

// byHand makes a claim and its PersistentVolume, and tells when it began and when
// the latter was seen.
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

// scale fills the API with nodes and volumes, and looks at a provisioner that comes
// new to them.
func (b *bed) scale(ctx context.Context) ([]string, error) {
	if err := b.fill(ctx); err != nil {
		return nil, err
	}
	p, err := b.launch()
	if err != nil {
		return nil, err
	}
	lines, err := b.atScale(ctx, p)
	return lines, errors.Join(err, p.end())
}

// fill makes as many nodes and volumes as are wanted.
func (b *bed) fill(ctx context.Context) error {
	if err := b.nodes(ctx, fewNodes, manyNodes); err != nil {
		return fmt.Errorf("make nodes: %w", err)
	}
	volumes := b.client.CoreV1().PersistentVolumes()
	there, err := volumes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	claims, err := b.served(ctx, "fill", manyVolumes-len(there.Items), fewNodes, manyNodes)
	if err != nil {
		return fmt.Errorf("make claims: %w", err)
	}
	return each(len(claims.names), func(i int) error {
		_, err := volumes.Create(ctx, volumeLike(&there.Items[0], claims.names[i], claims.node(i), claims.claims[i]), metav1.CreateOptions{})
		return err
	})
}

func (b *bed) atScale(ctx context.Context, p *process) ([]string, error) {
	classes := float64(len(b.classes))
	before, err := p.settled(ctx, (manyNodes-fewNodes)*classes)
	if err != nil {
		return nil, err
	}
	peak, err := p.peak()
	if err != nil {
		return nil, err
	}
	storage, err := b.storage.NodeStorage(ctx, nodeName(manyNodes/2))
	if err != nil {
		return nil, err
	}
	if err := b.report(ctx, storage, roomOfNode-volume.TiB); err != nil {
		return nil, err
	}
	after, err := p.settled(ctx, before+1)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("memory of the provisioner with %d nodes and %d volumes: %.1f MiB at most (target ≤ 250 MiB)", manyNodes, manyVolumes, peak),
		fmt.Sprintf("writes of capacities for one change of one node: %g for each class, of %g (target 1)", (after-before)/classes, classes),
	}, nil
}
