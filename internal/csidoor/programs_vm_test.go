//go:build vm

package csidoor_test

import (
	"context"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
)

// programs returns the node's programs. The tests do not depend on what deriving a key costs, and it
// would take most of their time, as a virtual node allocates memory slowly.
func programs(log logrus.FieldLogger) command.Programs {
	p := command.New("", log)
	return command.Programs{Unkillable: cheapKeys{p.Unkillable}, Killable: cheapKeys{p.Killable}}
}

// cheapKeys formats LUKS containers whose keys are derived with the least memory that argon2id accepts.
type cheapKeys struct{ exec.Interface }

func (c cheapKeys) Command(name string, args ...string) exec.Cmd {
	return c.Interface.Command(name, cheap(args)...)
}

func (c cheapKeys) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	return c.Interface.CommandContext(ctx, name, cheap(args)...)
}

func cheap(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if strings.HasPrefix(arg, "--pbkdf-memory=") {
			args[i] = "--pbkdf-memory=32" // KiB
		}
	}
	return args
}
