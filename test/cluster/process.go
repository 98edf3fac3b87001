package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// process is a program that the supervisor runs, possibly several times.
type process struct {
	program
	log string

	mu     sync.Mutex
	cmd    *exec.Cmd
	killed bool
	done   chan struct{} // closed when it has ended and is not restarted
	boot   string        // a node's boot ID, as last observed in the API
}

func newProcess(p program, dir string) *process {
	return &process{program: p, log: filepath.Join(dir, p.Name+".log")}
}

// start starts the program. Its output is appended to its log.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.aliveLocked() {
		return fmt.Errorf("start %s: it is running", p.Name)
	}
	if err := p.execLocked(); err != nil {
		return err
	}
	p.killed, p.done = false, make(chan struct{})
	go p.follow(p.done)
	return nil
}

func (p *process) execLocked() error {
	cmd, opened, err := p.Command(context.Background(), p.log)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer func() {
		for _, f := range opened {
			_ = f.Close()
		}
	}()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd = cmd
	return nil
}

// follow waits for the program's end, and restarts a machine that reboots.
func (p *process) follow(done chan struct{}) {
	defer close(done)
	for {
		p.mu.Lock()
		cmd := p.cmd
		p.mu.Unlock()
		err := cmd.Wait()
		p.mu.Lock()
		if err != nil || p.killed || !p.Again || p.execLocked() != nil {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// kill kills the program and waits until it is gone.
func (p *process) kill() error {
	p.mu.Lock()
	if p.cmd == nil {
		p.mu.Unlock()
		return nil
	}
	p.killed = true
	err := p.cmd.Process.Kill()
	done := p.done
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-done
	return nil
}

func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aliveLocked()
}

func (p *process) aliveLocked() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// failure returns an error that says what is wrong with the program, with the end of its logs.
func (p *process) failure(what string) error {
	logs, err := filepath.Glob(strings.TrimSuffix(p.log, ".log") + "*.log")
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", p.Name, what)
	for _, log := range logs {
		fmt.Fprintf(&text, "\n--- end of %s:\n%s", filepath.Base(log), tail(log, 15))
	}
	return errors.New(text.String())
}

// longest is the maximum length of a line in a tail: containerd writes its whole configuration as one line.
const longest = 300

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	last := all[max(0, len(all)-lines):]
	for i, line := range last {
		if len(line) > longest {
			last[i] = append(line[:longest:longest], "…"...)
		}
	}
	return string(bytes.Join(last, []byte("\n")))
}
