package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

// collectOptions are the flags of the command.
type collectOptions struct {
	image string
	list  bool
}

func jobCollectCommand(s *session) *cobra.Command {
	var o collectOptions
	cmd := &cobra.Command{
		Use:   "collect NAME",
		Short: "Make the volumes of finished workers readable",
		Long: `collect is for jobs that were started with --volume-per-worker. For each worker that has ended, it
creates a pod on the node of the worker's volume, which mounts the volume read-only, and prints the
command that copies its files. The pods and the volumes are deleted with the job.`,
		Example: `  kubectl flexlvm job collect count`,
		Args:    oneJob,
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, namespace, err := s.namespaced()
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), kube, namespace, args[0], controlFilter{cmd.OutOrStdout()})
		},
	}
	cmd.Flags().StringVar(&o.image, "image", "", "image of the pods, with sh, and tar for kubectl cp; empty: the image of the workers")
	cmd.Flags().BoolVar(&o.list, "list", false, "only list the workers' claims, and create no pods")
	return cmd
}

func (o *collectOptions) run(ctx context.Context, kube kubernetes.Interface, namespace, name string, out io.Writer) error {
	job, err := kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return withAdvice(fmt.Errorf("get job %s/%s: %w", namespace, name, err))
	}
	pods, err := podsOf(ctx, kube, namespace, name)
	if err != nil {
		return err
	}
	volumes, err := recipe.WorkerVolumes(job, pods)
	if err != nil {
		return err
	}
	if o.list {
		table := [][]string{{"WORKER", "CLAIM", "NODE", "POD-PHASE"}}
		for _, v := range volumes {
			table = append(table, []string{fmt.Sprint(v.Worker), v.Claim, orDash(v.Node), v.Phase})
		}
		printTable(out, table)
		return nil
	}
	dir, err := quoted(recipe.OwnDir(job))
	if err != nil {
		return fmt.Errorf("the mount path of job %s/%s cannot be part of a command: %w", namespace, name, err)
	}
	made, err := recipe.Collect(ctx, kube, job, volumes, cmp.Or(o.image, job.Spec.Template.Spec.Containers[0].Image))
	if err != nil {
		return withAdvice(err)
	}
	if len(made) == 0 {
		return fmt.Errorf("no worker of job %s/%s has ended yet; kubectl flexlvm job ls shows how many have", namespace, name)
	}
	for _, v := range volumes {
		at := slices.IndexFunc(made, recipe.Collects(job.Name, v.Worker))
		if at < 0 {
			fmt.Fprintf(out, "# worker %d has not ended\n", v.Worker)
			continue
		}
		fmt.Fprintf(out, "kubectl wait -n %[1]s pod/%[2]s --for=condition=Ready && kubectl cp -n %[1]s %[2]s:%[3]s %[4]s/worker-%[5]d\n", namespace, made[at].Name, dir, name, v.Worker)
	}
	return nil
}

// quoted returns text as a single word of a shell command. It refuses control characters, which terminals would
// interpret.
func quoted(text string) (string, error) {
	if replaceControl(text) != text || strings.ContainsAny(text, "\n\t") {
		return "", fmt.Errorf("%q contains control characters", text)
	}
	if strings.Trim(text, unquoted) == "" {
		return text, nil
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'", nil
}

// unquoted are the characters that no shell interprets.
const unquoted = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
