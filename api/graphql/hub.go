package graphql

import "context"

// An installation has no hub and no repository of models, and its public models are not listed for users. Clients that list them find
// none, so that nothing ever fills in the records below.
type (
	listing struct {
		ID                                                                        string
		RepoID, Title, RepoName, RepoOwner, Description, Category, Type, Language *string
		Tags                                                                      *[]string
		Stars, Views, Deploys                                                     *int32
		CreatedAt, UpdatedAt                                                      *scalar
		ListedRelease                                                             *release
	}
	release struct {
		ID                    string
		Name, TagName, Config *string
		CreatedAt             *scalar
		Build                 *build
	}
	build struct {
		ID        string
		ImageName *string
	}
	aiAPI struct {
		ID                                                     string
		AiAPIID, ModelName, DisplayName, Description, Metadata *string
		IsLive                                                 bool
		CreatedAt, UpdatedAt                                   *scalar
	}
	model struct {
		ID   string
		Name *string
	}
)

// Listings are none.
func (root) Listings(context.Context, with) []*listing { return nil }

// Listing is null.
func (root) Listing(context.Context, byID) *listing { return nil }

// ListingFromRepo is null.
func (root) ListingFromRepo(context.Context, struct{ RepoOwner, RepoName *string }) *listing {
	return nil
}

// AllAiAPIPublicConfigs are none.
func (root) AllAiAPIPublicConfigs(context.Context) []*aiAPI { return nil }

// MyModels are none.
func (root) MyModels(context.Context) []*model { return nil }
