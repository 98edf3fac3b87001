// Command kubectl-flexlvm is a kubectl plugin that answers questions about a whole cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/flexlvm/flexlvm/internal/version"
)

const long = `kubectl flexlvm answers questions about a whole cluster: the state of its nodes, which
volumes exist, and what would happen if a claim was created.

It uses the API as the user of your kubeconfig. Only undelete, retain, forget, door,
dataset refresh, job submit and job collect change anything.

In addition to the flags below, it accepts all of kubectl's flags for the connection to
the API server, such as --cluster, --server, --token and --request-timeout.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	silence()
	cmd := command()
	cmd.SetArgs(arguments(os.Args))
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(controlFilter{os.Stderr}, "kubectl flexlvm:", err)
		os.Exit(1)
	}
}

// hiddenFlags are kubectl's flags that the help omits, because they would fill most of it.
var hiddenFlags = []string{
	"as-uid", "certificate-authority", "client-certificate", "client-key", "cluster", "disable-compression", "insecure-skip-tls-verify",
	"password", "proxy-url", "request-timeout", "server", "tls-server-name", "token", "user", "username",
}

// noArguments refuses arguments of a command that accepts only flags.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q: %s accepts flags, but no arguments; see %[2]s --help", args[0], cmd.CommandPath())
}

// checkNamed refuses empty names, and flags that select something by an empty name. A shell passes them for a variable
// that is not set, and without a name another object than the user means may be selected.
func checkNamed(cmd *cobra.Command, args []string, flags ...string) error {
	if slices.Contains(args, "") {
		return fmt.Errorf("%q: a name is empty (is a variable not set?); see %s --help", args, cmd.CommandPath())
	}
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return fmt.Errorf("--%s is empty (is a variable not set?); give a name, or leave the flag out", name)
		}
	}
	return nil
}

// completer is the prefix of the program that kubectl executes to complete the arguments of a plugin: a link to
// the plugin itself.
const completer = "kubectl_complete-"

// arguments returns the arguments of a command or, in the completer, those of cobra's completion command.
func arguments(argv []string) []string {
	if strings.HasPrefix(filepath.Base(argv[0]), completer) {
		return append([]string{cobra.ShellCompRequestCmd}, argv[1:]...)
	}
	return argv[1:]
}

func command() *cobra.Command {
	s := &session{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	cmd := &cobra.Command{
		Use:         "kubectl-flexlvm",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl flexlvm"},
		Short:       "Inspect flexlvm's nodes and volumes, and plan new claims",
		Long:        long,
		Example: `  kubectl flexlvm status
  kubectl flexlvm volumes -n shop
  kubectl flexlvm plan --claim 500Gi --nodes 3`,
		Version:       version.String,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(of *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, of.CommandPath())
	})
	flags := cmd.PersistentFlags()
	flags.StringVar(&s.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig; empty: as for kubectl")
	clientcmd.BindOverrideFlags(&s.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	for _, name := range hiddenFlags {
		_ = flags.MarkHidden(name) // fails only for a flag that does not exist
	}
	cmd.AddCommand(
		translateCommand(),
		statusCommand(s),
		volumesCommand(s),
		planCommand(s),
		uiCommand(s),
		undeleteCommand(s),
		retainCommand(s),
		forgetCommand(s),
		doorCommand(s),
		doctorCommand(s),
		jobCommand(s),
		datasetCommand(s),
	)
	return cmd
}
