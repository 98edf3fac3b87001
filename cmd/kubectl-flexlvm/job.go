package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

func jobCommand(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "job", Short: "Start and inspect jobs with many workers",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("unknown command %q for %q; see %[2]s --help", args[0], cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(submitCommand(s), jobListCommand(s), jobLogsCommand(s), jobCollectCommand(s))
	return cmd
}

// A job is a job that submit started, as it is printed.
type job struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	State     string      `json:"state"` // Running, Suspended, Complete or Failed
	Workers   int32       `json:"workers"`
	Active    int32       `json:"active"`
	Done      int32       `json:"done"`
	Failed    int32       `json:"failed"` // pods that had to be replaced
	Claim     string      `json:"claim,omitempty"`
	Created   metav1.Time `json:"created"`
}

func jobOf(j *batchv1.Job) job {
	out := job{Namespace: j.Namespace, Name: j.Name, State: "Running", Active: j.Status.Active, Done: j.Status.Succeeded, Failed: j.Status.Failed, Created: j.CreationTimestamp}
	if j.Spec.Completions != nil {
		out.Workers = *j.Spec.Completions
	}
	if j.Spec.Suspend != nil && *j.Spec.Suspend {
		out.State = "Suspended"
	}
	if how, ended := recipe.Ended(j); ended {
		out.State = string(how)
	}
	for _, v := range j.Spec.Template.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			out.Claim = v.PersistentVolumeClaim.ClaimName
		}
	}
	return out
}

func jobListCommand(s *session) *cobra.Command {
	var o output
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the jobs that submit started", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			jobs, err := s.jobs(cmd.Context(), all)
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), jobs, func(to io.Writer) { printJobs(to, jobs, all, time.Now()) })
		},
	}
	outputFlag(cmd, &o)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the jobs of all namespaces")
	return cmd
}

func (s *session) jobs(ctx context.Context, all bool) ([]job, error) {
	kube, err := s.kubernetes()
	if err != nil {
		return nil, err
	}
	namespace := metav1.NamespaceAll
	if !all {
		if namespace, err = s.namespace(); err != nil {
			return nil, err
		}
	}
	return jobsIn(ctx, kube, namespace)
}

func jobsIn(ctx context.Context, kube kubernetes.Interface, namespace string) ([]job, error) {
	list, err := kube.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{LabelSelector: recipe.Component})
	if err != nil {
		return nil, withAdvice(fmt.Errorf("list jobs: %w", err))
	}
	out := []job{}
	for i := range list.Items {
		if j := &list.Items[i]; j.Labels["app.kubernetes.io/name"] == j.Name { // other programs use that label, too
			out = append(out, jobOf(j))
		}
	}
	return out, nil
}

func printJobs(to io.Writer, jobs []job, all bool, now time.Time) {
	if len(jobs) == 0 {
		fmt.Fprintln(to, "no jobs")
		return
	}
	head := []string{"NAME", "STATE", "WORKERS", "ACTIVE", "DONE", "FAILED", "CLAIM", "AGE"}
	if all {
		head = append([]string{"NAMESPACE"}, head...)
	}
	table := [][]string{head}
	for _, j := range jobs {
		row := []string{j.Name, j.State, fmt.Sprint(j.Workers), fmt.Sprint(j.Active), fmt.Sprint(j.Done), fmt.Sprint(j.Failed), orDash(j.Claim), ago(j.Created, now)}
		if all {
			row = append([]string{j.Namespace}, row...)
		}
		table = append(table, row)
	}
	printTable(to, table)
}

// oneJob checks the arguments of commands about one job.
func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%q: name one job; kubectl flexlvm job ls lists them", args)
	}
	return checkNamed(cmd, args)
}

// logOptions are the flags of the command.
type logOptions struct {
	worker int
	follow bool
	tail   int64
}

func jobLogsCommand(s *session) *cobra.Command {
	var o logOptions
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of a job's workers",
		Long: `logs prints the logs of a job's workers, each line with the number of its worker. If a worker was
replaced, it prints the log of its newest pod. With --follow it also waits for workers that have
not started and for pods that replace others, until the job ends.`,
		Example: `  kubectl flexlvm job logs count --worker 3 --follow`,
		Args:    oneJob,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			jobs, err := s.jobs(cmd.Context(), false)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			var names []string
			for _, j := range jobs {
				names = append(names, j.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, namespace, err := s.namespaced()
			if err != nil {
				return err
			}
			return o.show(cmd.Context(), kube, namespace, args[0], &printer{out: cmd.OutOrStdout(), notes: controlFilter{cmd.ErrOrStderr()}})
		},
	}
	cmd.Flags().IntVar(&o.worker, "worker", -1, "print only the log of this worker")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "follow the logs until the job has ended, or with --worker until that worker has")
	cmd.Flags().Int64Var(&o.tail, "tail", -1, "number of last lines to print of each log; negative: all")
	return cmd
}

// show prints the logs of the workers: one after the other, or with --follow as lines arrive.
func (o *logOptions) show(ctx context.Context, kube kubernetes.Interface, namespace, name string, p *printer) error {
	if o.follow {
		return o.followJob(ctx, kube, namespace, name, p)
	}
	pods, err := podsOf(ctx, kube, namespace, name)
	if err != nil {
		return err
	}
	last := o.last(pods)
	if len(last) == 0 {
		return noPods(namespace, name)
	}
	var first error
	for _, worker := range slices.Sorted(maps.Keys(last)) {
		if err := p.stream(ctx, kube, last[worker], worker, o.options(), nil); first == nil {
			first = err
		}
	}
	return first
}

func noPods(namespace, name string) error {
	return fmt.Errorf("job %s/%s has no pods of the requested workers; kubectl flexlvm job ls -n %[1]s lists the jobs", namespace, name)
}

// podsOf lists the pods of a job.
func podsOf(ctx context.Context, kube kubernetes.Interface, namespace, name string) ([]corev1.Pod, error) {
	selector := labels.SelectorFromSet(labels.Set{batchv1.JobNameLabel: name}).String()
	list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, withAdvice(fmt.Errorf("list the pods of job %s/%s: %w", namespace, name, err))
	}
	return list.Items, nil
}

// last returns the newest pod of each requested worker, by the worker's number.
func (o *logOptions) last(pods []corev1.Pod) map[int]*corev1.Pod {
	last := lastPods(pods)
	if o.worker >= 0 {
		maps.DeleteFunc(last, func(worker int, _ *corev1.Pod) bool { return worker != o.worker })
	}
	return last
}

// lastPods returns the newest pod of each worker, by the worker's number.
func lastPods(pods []corev1.Pod) map[int]*corev1.Pod {
	out := map[int]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		worker, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
		if err != nil || worker < 0 {
			continue
		}
		if other, there := out[worker]; !there || other.CreationTimestamp.Before(&p.CreationTimestamp) {
			out[worker] = p
		}
	}
	return out
}
