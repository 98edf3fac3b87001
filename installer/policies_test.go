package installer_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// accounts are those that the policies bound.
var accounts = []string{"flexlvm-provisioner", "flexlvm-gc", "flexlvm-nfs-provisioner"}

// updating is what an account asks for when it writes what is there.
type updating struct{ account, resource string }

// updatePolicies are those that look at what our accounts update.
func updatePolicies(t *testing.T) map[updating]*admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	out := map[updating]*admissionv1.ValidatingAdmissionPolicy{}
	for _, object := range objects(t) {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		for _, account := range accounts {
			if !slices.ContainsFunc(policy.Spec.MatchConditions, func(c admissionv1.MatchCondition) bool {
				return strings.Contains(c.Expression, ":"+account+"'")
			}) {
				continue
			}
			for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
				if !slices.Contains(rule.Operations, admissionv1.Update) && !slices.Contains(rule.Operations, admissionv1.OperationAll) {
					continue
				}
				for _, resource := range rule.Resources {
					out[updating{account, strings.Join(rule.APIGroups, ",") + "/" + resource}] = policy
				}
			}
		}
	}
	require.NotEmpty(t, out)
	return out
}

// Kubernetes deletes an object whose owner is not there: who may write ownerReferences
// may delete.
func TestPoliciesKeepOwners(t *testing.T) {
	const keeps = "request.operation != 'UPDATE' || object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
	for what, policy := range updatePolicies(t) {
		// A validation of its own, which nothing else can make true.
		require.True(t, slices.ContainsFunc(policy.Spec.Validations, func(v admissionv1.Validation) bool {
			return strings.Join(strings.Fields(v.Expression), " ") == keeps
		}), "policy %s does not compare ownerReferences when %s updates %s", policy.Name, what.account, what.resource)
	}
}

// What an account may update in the whole cluster, a policy looks at.
func TestUpdatesAreBounded(t *testing.T) {
	// Events tell, and nothing goes by them. A write of a custom resource's status, and
	// of finalizers, which is but a right, leaves its metadata as they are.
	harmless := []string{"/events", "flexlvm.io/volumemanagers/status", "flexlvm.io/volumemanagers/finalizers", "flexlvm.io/localvolumes/status"}
	policies := updatePolicies(t)
	seen := 0
	for where, object := range objects(t) {
		role, ok := object.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, rule := range role.Rules {
			if !slices.Contains(rule.Verbs, "update") && !slices.Contains(rule.Verbs, "patch") && !slices.Contains(rule.Verbs, "*") {
				continue
			}
			account := role.Name
			if account == "flexlvm-snapshotter" {
				account = "flexlvm-provisioner" // with which it runs
			}
			require.Contains(t, accounts, account, where)
			for _, resource := range rule.Resources {
				name := fmt.Sprintf("%s/%s", strings.Join(rule.APIGroups, ","), resource)
				if slices.Contains(harmless, name) {
					continue
				}
				seen++
				require.Contains(t, policies, updating{account, name}, where)
			}
		}
	}
	require.Positive(t, seen)
}

// A loader with the priority of the cluster's own pods would have others evicted: neither
// a VolumeManager nor the provisioner may ask for it.
func TestLoadersHaveNoSystemPriority(t *testing.T) {
	for file, rule := range map[string]string{
		"base/crd/flexlvm.io_volumemanagers.yaml": "!self.startsWith(''system-'')",
		"base/admission-loaders.yaml":             "!variables.pod.?priorityClassName.orValue('').startsWith('system-')",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), rule, file)
	}
}
