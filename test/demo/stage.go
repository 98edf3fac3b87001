package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/test/cluster"
)

// stage shows commands and runs them.
type stage struct {
	out     io.Writer
	color   bool
	cluster *cluster.Cluster
	volumes map[string]string // names of volumes on the node, by claim or dataset
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (s *stage) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *stage) title(text string) {
	fmt.Fprintf(s.out, "\n%s\n\n", s.paint("1;36", "── "+text+" ──"))
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, format+"\n", args...)
}

// kubectl shows and runs a kubectl command, which must succeed.
func (s *stage) kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := s.kubectlMayFail(ctx, args...)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

func (s *stage) kubectlMayFail(ctx context.Context, args ...string) (string, error) {
	s.prompt("$", "kubectl "+quoted(args))
	return s.show(s.cluster.KubectlCommand(ctx, args...))
}

// quiet runs kubectl without showing it.
func (s *stage) quiet(ctx context.Context, args ...string) (string, error) {
	return s.cluster.Kubectl(ctx, args...)
}

// onNode shows a line of shell and runs it on node1, where it must succeed.
func (s *stage) onNode(ctx context.Context, line string) (string, error) {
	s.prompt("node1#", line)
	cmd, err := s.cluster.NodeCommand(ctx, "node1", driverInPath+line)
	if err != nil {
		return "", err
	}
	out, err := s.show(cmd)
	if err != nil {
		return out, fmt.Errorf("on node1: %s: %w", line, err)
	}
	return out, nil
}

// nodeToKubectl shows and runs a line on node1 whose output is kubectl's input.
func (s *stage) nodeToKubectl(ctx context.Context, line string, args ...string) error {
	s.prompt("$", "ssh node1 "+line+" | kubectl "+quoted(args))
	from, err := s.cluster.NodeCommand(ctx, "node1", driverInPath+line)
	if err != nil {
		return err
	}
	var between bytes.Buffer
	from.Stdout, from.Stderr = &between, s.out
	if err := from.Run(); err != nil {
		return fmt.Errorf("on node1: %s: %w", line, err)
	}
	return s.feed(ctx, &between, args...)
}

// feed runs a kubectl command with an input, and shows its output but not its input.
func (s *stage) feed(ctx context.Context, input io.Reader, args ...string) error {
	cmd := s.cluster.KubectlCommand(ctx, args...)
	cmd.Stdin = input
	if _, err := s.show(cmd); err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// driverInPath puts the driver, which is also the operator's tool, into PATH for lines on the node.
const driverInPath = "PATH=$PATH:/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm; "

func (s *stage) prompt(sign, line string) {
	fmt.Fprintln(s.out, s.paint("32", sign)+" "+s.paint("1", line))
}

// show runs a command and shows and returns its output, both streams in their order.
func (s *stage) show(cmd *exec.Cmd) (string, error) {
	var kept bytes.Buffer
	both := io.MultiWriter(s.out, &kept)
	cmd.Stdout, cmd.Stderr = both, both
	err := cmd.Run()
	fmt.Fprintln(s.out)
	return kept.String(), err
}

// quoted returns arguments as a user would type them.
func quoted(args []string) string {
	typed := make([]string, len(args))
	for i, arg := range args {
		typed[i] = arg
		if strings.ContainsAny(arg, " \"{}$|;&<>*?%") {
			typed[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(typed, " ")
}

// expect returns an error unless text contains part.
func expect(text, part, meaning string) error {
	if strings.Contains(text, part) {
		return nil
	}
	return errors.New(meaning + ": expected to see " + part)
}
