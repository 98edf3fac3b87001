// Command flexlvm-job makes package jobvolume available to shells. It uses no command-line library, to
// stay small: it is copied into users' pods.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

const usage = `usage: flexlvm-job COMMAND

The volume that the workers of a job share, or that each has to itself. It is mounted at $FLEXLVM_JOB_DIR, or
/persistent, where it counts only if it is mounted; the worker's number is $JOB_COMPLETION_INDEX.

  job-dir             print the job's directory; fail where there is none
  worker-dir          make this worker's directory where need be, and print it
  log-file            make the directory of the log files where need be, and print
                      the name of this worker's
  job-dir-exists      succeed if it is there, else fail with 1
  worker-dir-exists   succeed if it is there, else fail with 1
  worker-size         print how many bytes the worker may take; fail with 1 where
                      nothing says so
  worker-used         print how many bytes its directory takes
  worker-fits         succeed if that is no more, else fail with 1
  install DIR         copy this program into DIR, for the containers of a pod
  version             print the release

It fails with 2 where it cannot be told, and says why on standard error.
`

// Exit codes.
const (
	yes    = 0
	no     = 1
	failed = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	answer, err := do(args)
	switch {
	case errors.Is(err, errNo):
		return no
	case err != nil:
		fmt.Fprintln(stderr, "flexlvm-job:", err)
		return failed
	}
	if answer != "" {
		fmt.Fprintln(stdout, answer)
	}
	return yes
}

// errUsage refers to the usage.
var errUsage = errors.New("flexlvm-job --help names them all")

// errNo makes the program exit with code no.
var errNo = errors.New("no")

func do(args []string) (string, error) {
	switch {
	case len(args) == 2 && args[0] == "install":
		return "", install(args[1])
	case len(args) != 1:
		return "", fmt.Errorf("give one command; %w", errUsage)
	}
	switch args[0] {
	case "help", "-h", "--help":
		return usage[:len(usage)-1], nil
	case "version", "--version":
		return "flexlvm-job " + version.String, nil
	}
	ask, known := commands[args[0]]
	if !known {
		return "", fmt.Errorf("there is no command %q; %w", args[0], errUsage)
	}
	v, err := jobvolume.FromEnvironment()
	if err != nil {
		return "", err
	}
	return ask(v)
}

var commands = map[string]func(jobvolume.Volume) (string, error){
	"job-dir":        jobvolume.Volume.JobDir,
	"worker-dir":     jobvolume.Volume.WorkerDir,
	"log-file":       jobvolume.Volume.LogFile,
	"job-dir-exists": func(v jobvolume.Volume) (string, error) { return answer(v.JobDirExists()) },
	"worker-size": func(jobvolume.Volume) (string, error) {
		size, err := jobvolume.Size()
		if err == nil && size == 0 {
			err = errNo
		}
		return strconv.FormatInt(size, 10), err
	},
	"worker-used": func(v jobvolume.Volume) (string, error) {
		used, err := v.Used()
		return strconv.FormatInt(used, 10), err
	},
	"worker-fits": func(v jobvolume.Volume) (string, error) {
		err := v.CheckSize()
		if errors.Is(err, jobvolume.ErrTooLarge) {
			err = errNo
		}
		return "", err
	},
	"worker-dir-exists": func(v jobvolume.Volume) (string, error) { return answer(v.WorkerDirExists()) },
}

func answer(there bool, err error) (string, error) {
	if err == nil && !there {
		err = errNo
	}
	return "", err
}

// install copies this program into dir. The copy gets its name last, so that an incomplete copy is
// never run.
func install(dir string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	from, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	defer func() { _ = from.Close() }() // it was only read
	to, err := os.CreateTemp(dir, ".flexlvm-job-")
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(to.Name(), filepath.Join(dir, "flexlvm-job"))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy this program: %w", err), os.Remove(to.Name()))
	}
	return nil
}
