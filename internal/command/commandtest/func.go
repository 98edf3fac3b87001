// Package commandtest replaces the host's programs in tests.
package commandtest

import (
	"context"
	"io"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command"
)

// A Func stands in for every program: it returns what the program prints, and how it ends. It
// implements exec.Interface.
type Func func(argv ...string) (stdout string, err error)

// Command implements exec.Interface.
func (f Func) Command(name string, args ...string) exec.Cmd {
	script := func(printed bool) []testingexec.FakeAction {
		return []testingexec.FakeAction{func() (stdout, stderr []byte, err error) {
			out, err := f(append([]string{name}, args...)...)
			if printed {
				stdout = []byte(out)
			}
			return stdout, nil, err
		}}
	}
	return testingexec.InitFakeCmd(&testingexec.FakeCmd{
		OutputScript: script(true), CombinedOutputScript: script(true), RunScript: script(false),
	}, name, args...)
}

// CommandContext implements exec.Interface.
func (f Func) CommandContext(_ context.Context, name string, args ...string) exec.Cmd {
	return f.Command(name, args...)
}

// LookPath implements exec.Interface: every program exists.
func (f Func) LookPath(name string) (string, error) { return name, nil }

// Missing returns the error of a program that the host does not have.
func Missing(argv ...string) error {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return command.New("/nonexistent", silent).Unkillable.Command(argv[0], argv[1:]...).Run()
}

// An InputFunc is a Func that also receives the program's input.
type InputFunc func(stdin string, argv ...string) error

// Command implements exec.Interface.
func (f InputFunc) Command(name string, args ...string) exec.Cmd {
	fake := &testingexec.FakeCmd{}
	fake.RunScript = []testingexec.FakeAction{func() (stdout, stderr []byte, err error) {
		var in []byte
		if fake.Stdin != nil {
			if in, err = io.ReadAll(fake.Stdin); err != nil {
				return nil, nil, err
			}
		}
		return nil, nil, f(string(in), append([]string{name}, args...)...)
	}}
	return testingexec.InitFakeCmd(fake, name, args...)
}

// CommandContext implements exec.Interface.
func (f InputFunc) CommandContext(_ context.Context, name string, args ...string) exec.Cmd {
	return f.Command(name, args...)
}

// LookPath implements exec.Interface: every program exists.
func (f InputFunc) LookPath(name string) (string, error) { return name, nil }
