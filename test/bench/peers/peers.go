// Package peers measures how long it takes until many nodes that copy from each other have a dataset. Nodes are
// directories, and loaders and servers are processes on one machine. The order of the copies is the dataset
// controller's: one loader fetches from the source, and then the number of loaders that copy at the same time is
// the number of nodes that have the dataset.
package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	mib   = 1 << 20
	files = 32
	size  = 1 * mib
	// sourceRate is the source's total bandwidth, and peerRate each node's, in bytes per second.
	sourceRate = 2 * mib
	peerRate   = 4 * sourceRate
	most       = 8 // maximum number of peers that a node copies from
	target     = 3.0
)

// Config configures a measurement.
type Config struct {
	Loader string // the path of the program fetch
	Dir    string
	Rounds int
	Log    io.Writer
}

// Run returns the lines of the table.
func Run(ctx context.Context, c Config) ([]string, error) {
	b := &bench{Config: c, secrets: filepath.Join(c.Dir, "token-of-peers")}
	if err := os.MkdirAll(b.secrets, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(b.secrets, "token"), []byte(strings.Repeat("0123456789abcdef", 4)), 0o600); err != nil {
		return nil, err
	}
	var err error
	if b.source, err = serve(ctx, files, size, sourceRate); err != nil {
		return nil, err
	}
	defer b.source.close()
	times := map[int][]time.Duration{}
	for range c.Rounds {
		for _, nodes := range []int{1, 4, 16} {
			took, err := b.fill(ctx, nodes)
			if err != nil {
				return nil, fmt.Errorf("fill %d nodes: %w", nodes, err)
			}
			fmt.Fprintf(c.Log, "%d nodes: %s\n", nodes, took.Round(10*time.Millisecond))
			times[nodes] = append(times[nodes], took)
		}
	}
	var lines []string
	for _, nodes := range []int{4, 16} {
		f := figure.Figure{Name: fmt.Sprintf("%d nodes ÷ one node", nodes), Ours: figure.Median(times[nodes]), Theirs: figure.Median(times[1]), Rounds: c.Rounds, Target: target}
		lines = append(lines, f.String())
	}
	return lines, nil
}

type bench struct {
	Config
	source  *source
	secrets string
	round   int
}

// A node is a directory and its server.
type node struct {
	dir, address, index string
	server              *exec.Cmd
}

// fill returns how long it takes until count nodes have the dataset.
func (b *bench) fill(ctx context.Context, count int) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	b.round++
	root := filepath.Join(b.Dir, fmt.Sprintf("rack-%d", b.round))
	var serving []*node
	defer func() {
		for _, n := range serving {
			err = errors.Join(err, n.stop())
		}
		err = errors.Join(err, os.RemoveAll(root))
	}()
	b.source.taken()
	began := time.Now()
	type result struct {
		node *node
		err  error
	}
	done := make(chan result, count)
	begun, copying := 0, 0
	load := func(peers []*node) {
		n := &node{dir: filepath.Join(root, fmt.Sprint(begun))}
		begun++
		go func() { done <- result{n, b.load(ctx, n, peers)} }()
	}
	load(nil)
	for finished := 1; ; finished++ {
		r := <-done
		if r.err != nil {
			return 0, r.err
		}
		if finished == count {
			took = time.Since(began)
			break
		}
		copying = max(0, copying-1)
		if err := b.serve(ctx, r.node); err != nil {
			return 0, err
		}
		serving = append(serving, r.node)
		for ; copying < len(serving) && begun < count; copying++ {
			turn := slices.Concat(serving[begun%len(serving):], serving[:begun%len(serving)])
			load(turn[:min(most, len(turn))])
		}
	}
	if sent := b.source.taken(); sent > files*size+mib {
		return 0, fmt.Errorf("the source sent %d bytes for %d of one node", sent, files*size)
	}
	return took, nil
}

// load fills a node from its peers, or from the source if it has none.
func (b *bench) load(ctx context.Context, n *node, peers []*node) error {
	result := n.dir + ".result"
	args := []string{"--progress=none", "--sync", "--result=" + result, "--log-level=error"}
	if len(peers) == 0 {
		args = append(args, "--index")
	} else {
		args = append(args, "--peers-dir="+b.secrets, "--peers-dataset=bench", "--peer-index="+peers[0].index)
	}
	for _, p := range peers {
		args = append(args, "--peer="+p.address)
	}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, b.Loader, append(args, b.source.url, n.dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load: %w: %s", err, out)
	}
	text, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	var status struct{ Index string }
	if err := json.Unmarshal(text, &status); err != nil {
		return err
	}
	n.index = status.Index
	return nil
}

var addressOf = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// serve starts a node's server.
func (b *bench) serve(ctx context.Context, n *node) error {
	n.server = exec.CommandContext(ctx, b.Loader, "serve", "--progress=none", "--address=127.0.0.1:0", "--peers-dir="+b.secrets, "--peers-dataset=bench",
		fmt.Sprintf("--bandwidth=%d", peerRate), n.dir)
	log, err := n.server.StderrPipe()
	if err != nil {
		return err
	}
	if err := n.server.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(log).ReadString('\n')
	if n.address = addressOf.FindString(line); n.address == "" {
		return errors.Join(fmt.Errorf("serve: no address in %q", line), err, n.stop())
	}
	return nil
}

// stop stops a node's server.
func (n *node) stop() error {
	if err := n.server.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return n.server.Wait()
}
