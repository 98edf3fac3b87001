package kube

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// A Reviewer asks the API server which user a token belongs to, and what that user may do. It must be
// allowed to create tokenreviews and subjectaccessreviews (ClusterRole system:auth-delegator).
type Reviewer struct {
	authentication rest.Interface
	authorization  rest.Interface
}

// reviewTimeout is less than the timeout of a scrape.
const reviewTimeout = 5 * time.Second

// NewReviewer returns a reviewer with its own connections and rate limit: anybody can
// cause its requests, which must not delay the daemon's work. It does not change config.
func NewReviewer(config *rest.Config) (*Reviewer, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("create the API client for reviews: %w", err)
		}
	}
	config = rest.CopyConfig(config)
	config.Timeout, config.QPS, config.Burst, config.RateLimiter = reviewTimeout, 5, 10, nil
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the API client for reviews: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	r := &Reviewer{}
	if r.authentication, err = groupClient(config, transport, codecs, "/apis", authenticationv1.SchemeGroupVersion, runtime.ContentTypeJSON); err != nil {
		return nil, err
	}
	if r.authorization, err = groupClient(config, transport, codecs, "/apis", authorizationv1.SchemeGroupVersion, runtime.ContentTypeJSON); err != nil {
		return nil, err
	}
	return r, nil
}

// MayGet reports whether the API server accepts the token, and allows its user to get a non-resource
// path.
func (r *Reviewer) MayGet(ctx context.Context, token, path string) (known, allowed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := r.authentication.Post().Resource("tokenreviews").Body(who).MaxRetries(0).Do(ctx).Into(who); err != nil {
		return false, false, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return false, false, nil
	}
	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	what := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	if err := r.authorization.Post().Resource("subjectaccessreviews").Body(what).MaxRetries(0).Do(ctx).Into(what); err != nil {
		return true, false, fmt.Errorf("review whether %s may get %s: %w", user.Username, path, err)
	}
	return true, what.Status.Allowed && !what.Status.Denied, nil
}
