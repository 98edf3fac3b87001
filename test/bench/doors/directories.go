package doors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/start"
)

const (
	directories    = "directories" // the pool
	directoryClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: directory}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {layout: directory, directoryPool: directories, trustPods: "true"}
`
)

// MeasureDirectories compares volumes of layout directory with logical volumes: the life of a claim, as in Measure,
// on an empty node and on one with so many directory volumes; and how long the driver takes to create and mount
// those volumes, and a tenth as many logical volumes.
func MeasureDirectories(ctx context.Context, cfg Config, volumes int) (lines []string, err error) {
	const disk = 200 << 30 // sparse
	b, err := start.Open(ctx, disk)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	size := volume.Bytes(volumes)*volume.DirectorySize(volume.MinDirectory, 0) + volume.GiB
	if out, err := b.Node(ctx, start.Node, start.Driver, "directories", "create", "--pool", directories, "--size", fmt.Sprint(int64(size))); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if _, err := b.KubectlInput(ctx, strings.NewReader(directoryClass), "apply", "-f", "-"); err != nil {
		return nil, err
	}
	if err := b.Offered(ctx, "directory"); err != nil {
		return nil, err
	}
	for _, beside := range []int{0, volumes} {
		sides := []*side{{name: fmt.Sprintf("logical-%d", beside), class: "flexlvm", grows: true}, {name: fmt.Sprintf("directory-%d", beside), class: "directory", grows: true}}
		if beside > 0 {
			made, err := fill(ctx, b, beside)
			if err != nil {
				return nil, err
			}
			lines = append(lines, made...)
		}
		if _, err := rounds(ctx, b, cfg, sides); err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("beside %d directory volumes, medians of %d rounds, a logical volume each and a directory:", beside, cfg.Rounds))
		for _, step := range steps {
			lines = append(lines, fmt.Sprintf("- %s: %s, %s", step, seconds(sides[0].median(step)), seconds(sides[1].median(step))))
		}
	}
	return lines, nil
}

// fill has the driver create and mount volumes on the node, one after the other.
func fill(ctx context.Context, b *start.Bed, n int) (lines []string, err error) {
	directory := volume.Spec{Group: volume.DefaultGroup, Size: volume.MinDirectory, Kind: volume.Claim, Layout: volume.Directory, DirectoryPool: directories}
	logical := volume.Spec{Group: volume.DefaultGroup, Size: volume.MinDirectory, Kind: volume.Claim, Layout: volume.Linear}
	for _, of := range []struct {
		name string
		spec volume.Spec
		n    int
	}{{"directory", directory, n}, {"logical", logical, max(1, n/10)}} {
		took, err := mountAll(ctx, b, of.spec, of.name, of.n)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("the driver made and mounted %d %s volumes, each in %s on average", of.n, of.name, took.Round(time.Millisecond)))
	}
	return lines, nil
}

func mountAll(ctx context.Context, b *start.Bed, spec volume.Spec, name string, n int) (time.Duration, error) {
	var calls strings.Builder
	for i := range n {
		options := map[string]string{
			"kubernetes.io/fsType": "", "kubernetes.io/readwrite": "rw", "kubernetes.io/pod.namespace": "default",
			"kubernetes.io/pvOrVolumeName": fmt.Sprintf("%s-%d", name, i), volume.OptionCluster: "bench",
		}
		maps.Copy(options, spec.Options())
		text, err := json.Marshal(options)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(&calls, "%s\n", text)
	}
	script := fmt.Sprintf(`i=0; while read -r options; do i=$((i+1)); mkdir -p /run/bench/%[1]s-$i; said=$(%[2]s mount /run/bench/%[1]s-$i "$options") || { echo "$said"; exit 1; }; done`, name, start.Driver)
	began := time.Now()
	if out, err := b.NodeInput(ctx, strings.NewReader(calls.String()), start.Node, "sh", "-c", script); err != nil {
		return 0, fmt.Errorf("mount %s volumes: %w: %s", name, err, out)
	}
	took := time.Since(began) / time.Duration(n)
	out, err := b.Node(ctx, start.Node, "sh", "-c", "umount /run/bench/"+name+"-*")
	if err != nil {
		return 0, fmt.Errorf("unmount %s volumes: %w: %s", name, err, out)
	}
	return took, nil
}
